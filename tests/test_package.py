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
from seedcli.suites.suite import suite_names

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
    suites = {path.stem for path in (site / "seedcli" / "benchmarks").iterdir()}
    assert suites == {path.stem for path in (ROOT / "benchmarks" / "suites").iterdir()} == set(suite_names())
    (info,) = site.glob("seedcli-*.dist-info")
    assert info.name == f"seedcli-{seedcli.__version__}.dist-info"
    assert (site / "seedcli" / "py.typed").is_file()
    assert "seed = seedcli.__main__:run" in (info / "entry_points.txt").read_text()
    assert "Apache License" in (info / "licenses" / "LICENSE").read_text()
    assert {entry.name for entry in site.iterdir()} == {"seedcli", info.name}


def test_an_editable_install_finds_the_presets(tmp_path: Path) -> None:
    site = build("build_editable", tmp_path)
    (pth,) = site.glob("*.pth")
    module, names = listing(site, Path(pth.read_text().strip()))
    assert module == ROOT / "seedcli" / "config" / "presets.py"
    assert names == preset_names()


_IMPORT = """
import sys, time
before, begun = set(sys.modules), time.process_time()
import seedcli
print(time.process_time() - begun)
print(*sorted(name.partition(".")[0] for name in set(sys.modules) - before))
assert "train" in dir(seedcli) and "seedcli.api" not in sys.modules
seedcli.errors, seedcli.specs, seedcli.Run, seedcli.load_policy, seedcli.train
print("tensorflow" in sys.modules)
"""


def test_importing_the_package_loads_nothing_else() -> None:
    done = subprocess.run([sys.executable, "-c", _IMPORT], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    seconds, modules, tensorflow = done.stdout.splitlines()
    assert float(seconds) < 0.1  # of processor time
    assert set(modules.split()) <= {"seedcli"} | sys.stdlib_module_names
    assert tensorflow == "False", "it is loaded where an agent is built"


def test_public_names_are_the_declared_ones() -> None:
    for name in seedcli.__all__:
        assert getattr(seedcli, name) is not None
    assert set(seedcli.__all__) <= set(dir(seedcli))
    with pytest.raises(AttributeError, match="module 'seedcli' has no attribute 'trian'"):
        seedcli.trian  # noqa: B018 (an attribute that is not there)


_TYPED = """
import numpy, seedcli
policy: seedcli.Policy = seedcli.load_policy("runs/x", greedy=True)
run: seedcli.Run = seedcli.train("cartpole_vtrace", steps=10, set={"training.batch_size": 8})
mean: float = run.evaluate().mean
seedcli.load_policy(3)
"""


@pytest.mark.timeout(300)
def test_types_are_seen_by_users(tmp_path: Path) -> None:
    assert (ROOT / "seedcli" / "py.typed").is_file()
    (tmp_path / "user.py").write_text(_TYPED)
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--no-incremental", "user.py"]
    environ = {**os.environ, "MYPYPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=280)
    errors = [line for line in done.stdout.splitlines() if "error:" in line]
    assert len(errors) == 1 and "user.py:6" in errors[0] and "arg-type" in errors[0], done.stdout


def test_every_dependency_has_a_documented_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    reasons = (ROOT / "docs" / "dependencies.md").read_text()
    extras = [name for extra in project["optional-dependencies"].values() for name in extra]
    for requirement in project["dependencies"] + extras:
        name = requirement.split(">")[0].split("[")[0]
        # An extra may include other extras of this package.
        assert name == project["name"] or name in reasons, f"{name} has no reason in docs/dependencies.md"
    assert {"test", "gpu", "football", "mujoco", "export"} <= set(project["optional-dependencies"])


WITHOUT = """
import sys
sys.modules["{missing}"] = None  # as if it were not installed
{code}
"""


@pytest.mark.parametrize(
    ("missing", "code", "sentence"),
    [
        ("pydantic", "import seedcli; seedcli.load_policy('x.onnx')", "load_policy needs pydantic, not installed here"),
        ("typer", "from seedcli.__main__ import run; sys.exit(run())", "seed: typer is needed and not installed here"),
    ],
)
def test_a_missing_dependency_is_named_in_one_sentence(missing: str, code: str, sentence: str) -> None:
    command = [sys.executable, "-c", WITHOUT.format(missing=missing, code=code)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode and sentence in done.stderr.splitlines()[-1]
    assert f"pip install {missing}" in done.stderr
