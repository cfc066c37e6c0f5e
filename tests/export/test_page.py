"""The examples of docs/deployment.md run unchanged, the first two without seedcli."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from seedcli.cli.main import main
from tests.export.helpers import cartpole_run, make_run

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
ENVIRONMENT = (ROOT / "docs" / "writing-an-environment.md").read_text(encoding="utf-8")
_CHECK = """
import sys
assert not {"seedcli", "tensorflow"} & set(sys.modules)
sys.path.insert(0, sys.argv[1])
"""


def code_of(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", page, flags=re.DOTALL | re.MULTILINE)


@pytest.mark.timeout(120)
def test_the_examples_run(tmp_path: Path) -> None:
    assert main(["export", str(cartpole_run(tmp_path / "run")), str(tmp_path / "cartpole.onnx")]) == 0
    alone, _, policy = code_of(PAGE)
    assert len([line for line in alone.splitlines() if line and not line.startswith("import")]) <= 10
    command = [sys.executable, "-c", alone + _CHECK + policy, str(ROOT)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert re.fullmatch(r"return \d+", first)
    assert re.fullmatch(r"<seedcli.Policy for gymnasium/CartPole-v1, greedy, 70 environment steps> [01]", second)


@pytest.mark.timeout(120)
def test_the_example_with_a_dict_observation_casts_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_package.py").write_text(next(code for code in code_of(ENVIRONMENT) if "class Beacon" in code))
    monkeypatch.syspath_prepend(tmp_path)
    run = make_run(tmp_path / "run", "gymnasium_vtrace", "my_package:Beacon-v0")
    assert main(["export", str(run), str(tmp_path / "beacon.onnx")]) == 0
    del sys.modules["my_package"]  # other pages define a different one
    example = next(code for code in code_of(PAGE) if "Beacon" in code)
    done = subprocess.run(
        [sys.executable, "-c", example], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"return -?\d+(\.\d+)?\n", done.stdout)
