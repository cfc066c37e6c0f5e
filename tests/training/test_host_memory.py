"""Available memory: of the machine, or within the limits of control groups."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from seedcli.training import host_memory as memory


def _group(folder: Path, limit: str | None, current: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if limit is not None:
        (folder / "memory.max").write_text(f"{limit}\n")
        (folder / "memory.current").write_text(f"{current}\n")


def _membership(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "cgroup"
    path.write_text(text)
    return path


def test_all_parent_groups_count(tmp_path: Path) -> None:
    root = tmp_path / "fs"
    _group(root, None)
    _group(root / "slurm", "5000", 1000)
    _group(root / "slurm" / "job", "max", 900)
    _group(root / "slurm" / "job" / "step", "3000", 2500)
    _group(root / "other", "10", 10)
    left = list(memory._left_in_groups(root, _membership(tmp_path, "1:cpu:/old\n0::/slurm/job/step\n")))
    assert left == [500, 4000]


def test_a_group_over_its_limit_has_no_memory_left(tmp_path: Path) -> None:
    _group(tmp_path / "fs" / "job", "1000", 1200)
    assert list(memory._left_in_groups(tmp_path / "fs", _membership(tmp_path, "0::/job\n"))) == [0]


@pytest.mark.parametrize("name", ["/", "/of/the/host", "/../../elsewhere"])
def test_in_a_container_the_root_is_the_group(tmp_path: Path, name: str) -> None:
    root = tmp_path / "fs"
    _group(root, "700", 200)
    assert list(memory._left_in_groups(root, _membership(tmp_path, f"0::{name}\n")))[-1:] in ([500], [])
    if ".." not in name:
        assert list(memory._left_in_groups(root, _membership(tmp_path, f"0::{name}\n"))) == [500]


@pytest.mark.parametrize("text", ["", "12:cpu,cpuacct:/job\n", "nonsense\n"])
def test_without_memory_control_groups_there_is_no_limit(tmp_path: Path, text: str) -> None:
    _group(tmp_path / "fs" / "job", "700", 200)
    assert list(memory._left_in_groups(tmp_path / "fs", _membership(tmp_path, text))) == []
    assert list(memory._left_in_groups(tmp_path / "fs", tmp_path / "absent")) == []


def test_control_groups_version_1(tmp_path: Path) -> None:
    group = tmp_path / "fs" / "memory" / "job"
    group.mkdir(parents=True)
    (group / "memory.limit_in_bytes").write_text("900\n")
    (group / "memory.usage_in_bytes").write_text("600\n")
    (group / "memory.stat").write_text("inactive_file 1\ntotal_inactive_file 250\n")
    membership = _membership(tmp_path, "9:cpu:/job\n4:hugetlb,memory:/job\n")
    assert list(memory._left_in_groups(tmp_path / "fs", membership)) == [550]


def test_page_cache_counts_as_available(tmp_path: Path) -> None:
    _group(tmp_path / "fs" / "job", "1000", 990)
    (tmp_path / "fs" / "job" / "memory.stat").write_text("anon 90\ninactive_file 800\nactive_file 100\n")
    assert list(memory._left_in_groups(tmp_path / "fs", _membership(tmp_path, "0::/job\n"))) == [810]


def test_the_smallest_limit_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_left_in_groups", lambda root, membership: [])
    assert 0 < memory.available_memory() <= psutil.virtual_memory().total
    monkeypatch.setattr(memory, "_left_in_groups", lambda root, membership: [12345, 10**15])
    assert memory.available_memory() == 12345
