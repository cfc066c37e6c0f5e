"""`seed build`: packs seed and installed packages into one file with pex, and moves it into place when complete."""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import seedcli
from seedcli.build.request import Request
from seedcli.config.presets import shipped_folder
from seedcli.errors import EXIT_DONE, EXIT_USAGE, SeedError
from seedcli.files import sync

# Folders that a wheel has inside the package: name there, path in a checkout (`force-include` in pyproject.toml).
_SHIPPED = {"presets": "presets", "benchmarks": "benchmarks/suites"}
_PYTHON = ".".join(platform.python_version_tuple()[:2])
_DURATION = {"actor": "some seconds", "all": "some minutes"}
_EXAMPLES = {"actor": "actor --connect HOST:8686 --envs 32", "all": "train --preset cartpole_vtrace"}

# The beginning of a file's code. Any Python version may run it, but compiled packages fit only one version.
_PREAMBLE = f"""\
import sys

if sys.version_info[:2] != {sys.version_info[:2]}:
    sys.stderr.write(
        "seed: this file needs Python {_PYTHON}, and was started with Python %d.%d: put python{_PYTHON} on PATH, or "
        "build the file with Python %d.%d\\n" % (sys.version_info[:2] * 2)
    )
    sys.exit({EXIT_USAGE})
"""


def run_build(request: Request, *, json_output: bool) -> int:
    """Build a file, once `check_request` has passed.

    Args:
        request: what is built.
        json_output: print a JSON object on stdout instead of lines for people.

    Returns:
        The exit status.

    Raises:
        SeedError: a package cannot be packed, or the file cannot be written.
    """
    out = request.out
    print(f"packing {out}: {_DURATION[request.kind]}", file=sys.stderr, flush=True)
    try:
        with tempfile.TemporaryDirectory(prefix=".build-", dir=out.absolute().parent) as name:
            made = _pack(request, Path(name))
            sync(made)
            made.replace(out)
    except OSError as error:
        raise SeedError(f"{out} cannot be written ({error.strerror}): make room, or name another file") from error
    _report(request, json_output=json_output)
    return EXIT_DONE


def _pack(request: Request, folder: Path) -> Path:
    """Build the file in a folder, which also holds pex's temporary files; returns the file."""
    sources, preamble, made = folder / "sources", folder / "preamble.py", folder / "made"
    _copy_package(sources)
    preamble.write_text(_PREAMBLE, encoding="utf-8")
    command = [sys.executable, "-m", "pex", *request.contents.requirements]
    for name in request.contents.unneeded:
        command += ["--exclude", name]
    # The packages are those installed here: the versions that this machine runs, and no download.
    command += ["--venv-repository", sys.prefix, "--sources-directory", str(sources)]
    # A file unpacks itself into a virtual environment at its first start (--venv), so that `seed` can start further
    # `seed` processes; later starts go there from the shell (--sh-boot). PYTHONPATH and modules in the working folder
    # are seen, as by an installed `seed` (--non-hermetic-venv-scripts).
    command += ["--entry-point", "seedcli.__main__:run", "--venv", "--non-hermetic-venv-scripts", "--sh-boot"]
    command += ["--preamble-file", str(preamble)]
    command += ["--pex-root", str(folder / "cache"), "--tmpdir", str(folder), "--output-file", str(made)]
    if complaint := _run(command):
        raise SeedError(f"pex cannot pack {request.out}: {complaint}")
    return made


def _run(command: list[str]) -> str:
    """Run a command; an exception here kills it and its children. Returns why it failed; "" if it succeeded."""
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
    ) as process:
        try:
            _, errors = process.communicate()
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    lines = errors.decode(errors="replace").strip().splitlines()
    return (lines or [f"status {process.returncode}"])[-1] if process.returncode else ""


def _copy_package(folder: Path) -> None:
    """Copy seed's own files in the layout of a wheel, from an installation or a checkout."""
    package = folder / "seedcli"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(seedcli.__file__).parent, package, ignore=ignored)
    for name, checkout in _SHIPPED.items():
        shutil.copytree(shipped_folder(checkout, name), package / name, ignore=ignored, dirs_exist_ok=True)


def _report(request: Request, *, json_output: bool) -> None:
    size = request.out.stat().st_size
    if json_output:
        found = {"file": str(request.out), "kind": request.kind, "bytes": size, "python": _PYTHON}
        print(json.dumps(found))
        return
    start = request.out if request.out.is_absolute() else f"./{request.out}"
    print(f"{request.out}: {size / 1e6:,.0f} MB, for Python {_PYTHON} on {platform.system()} {platform.machine()}")
    print(f"start it: {start} {_EXAMPLES[request.kind]}")
