"""The built package: presets in the wheel and in an editable install, version, licence, extras."""

import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import seedcli
from seedcli.config.presets import preset_names

ROOT = Path(__file__).resolve().parent.parent
LISTING = "import seedcli.config.presets as l; print(l.__file__); print(*l.preset_names())"


def build(kind: str, folder: Path) -> Path:
    """Build a wheel (`build_wheel`) or an editable one (`build_editable`) and unpack it."""
    pytest.importorskip("hatchling", reason="hatchling comes with the test extra")
    script = f"import sys; from hatchling.build import {kind}; print({kind}(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", script, str(folder)], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    unpacked = folder / "site"
    with zipfile.ZipFile(folder / done.stdout.split()[-1]) as wheel:
        wheel.extractall(unpacked)
    return unpacked


def listing(*path: Path) -> tuple[Path, list[str]]:
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    done = subprocess.run(
        [sys.executable, "-c", LISTING], cwd=path[0], env=environ, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    module, names = done.stdout.splitlines()
    return Path(module), names.split()


def test_a_wheel_holds_the_presets_the_licence_and_the_command(tmp_path: Path) -> None:
    site = build("build_wheel", tmp_path)
    module, names = listing(site)
    assert module == site / "seedcli" / "config" / "presets.py"
    assert names == preset_names()
    (info,) = site.glob("seedcli-*.dist-info")
    assert info.name == f"seedcli-{seedcli.__version__}.dist-info"
    assert "seed = seedcli.cli.main:main" in (info / "entry_points.txt").read_text()
    assert "Apache License" in (info / "licenses" / "LICENSE").read_text()
    assert {entry.name for entry in site.iterdir()} == {"seedcli", info.name}


def test_an_editable_install_finds_the_presets(tmp_path: Path) -> None:
    site = build("build_editable", tmp_path)
    (pth,) = site.glob("*.pth")
    module, names = listing(site, Path(pth.read_text().strip()))
    assert module == ROOT / "seedcli" / "config" / "presets.py"
    assert names == preset_names()


def test_every_dependency_has_a_documented_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    reasons = (ROOT / "docs" / "dependencies.md").read_text()
    extras = [name for extra in project["optional-dependencies"].values() for name in extra]
    for requirement in project["dependencies"] + extras:
        name = requirement.split(">")[0].split("[")[0]
        # An extra may ask for other extras of this package.
        assert name == project["name"] or name in reasons, f"{name} has no reason in docs/dependencies.md"
    assert {"test", "gpu", "football", "mujoco"} <= set(project["optional-dependencies"])
