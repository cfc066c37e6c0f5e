"""`seed doctor`: what this machine can run, as findings with advice."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import platform
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table
from rich.text import Text

from seedcli import __version__
from seedcli.config.schema import Config
from seedcli.doctor.devices import check_devices
from seedcli.doctor.findings import Finding, package
from seedcli.doctor.network import ports, token, transports
from seedcli.errors import EXIT_DONE, EXIT_FAILED
from seedcli.training.host_memory import available_memory

_GIB = 2**30


def run_doctor(json_output: bool, config: Config | None = None) -> int:
    """Run all checks and print the findings to stdout.

    Args:
        json_output: print JSON instead of a table.
        config: also report its device plan; None: no plan.

    Returns:
        1 if something that training needs is missing, or the configuration's topology does not fit, else 0.
    """
    if not json_output:
        slow = " (importing TensorFlow takes some seconds)" if package("tensorflow") is not None else ""
        print(f"checking this machine{slow}", file=sys.stderr)
    findings = diagnose(config)
    broken = [finding for finding in findings if finding.required and finding.status == "missing"]
    if json_output:
        print(json.dumps({"ok": not broken, "findings": [asdict(finding) for finding in findings]}, indent=2))
    else:
        print_findings(Console(), findings, config.run.preset if config else "")
    return EXIT_FAILED if broken else EXIT_DONE


def diagnose(config: Config | None = None) -> list[Finding]:
    """All findings; an unexpected error in a check becomes a finding. `config`: see `run_doctor`."""
    checks: dict[str, Callable[[], list[Finding]]] = {
        "python": _check_python,
        "processor": _check_processor,
        "memory": _check_memory,
        "file descriptors": _check_descriptors,
        "tensorflow": lambda: check_devices(config),
        "gymnasium": _check_gymnasium,
        "atari": _check_atari,
        "simulators": _check_simulators,
        "video": _check_video,
        "transports": transports,
        "ports": ports,
        "token": token,
        "shared memory": _check_shared_memory,
        "run folder": _check_run_folder,
    }
    findings: list[Finding] = []
    for name, check in checks.items():
        try:
            findings += check()
        except Exception as error:  # the other checks still run
            detail = f"check failed: {type(error).__name__}: {error}"
            findings.append(Finding(name, "warning", detail, "report this with the output of seed doctor --json"))
    return findings


def print_findings(console: Console, findings: list[Finding], preset: str = "") -> None:
    """Print findings as a table with the advice under each; `preset` is the one to suggest, if any."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    styles = {"ok": "green", "warning": "yellow", "missing": "bold red"}
    for finding in findings:
        text = Text(finding.detail)
        if finding.advice:
            text.append(f"\n{finding.advice}", style=styles[finding.status])
        table.add_row(Text(finding.status, style=styles[finding.status]), finding.name, text)
    console.print(table)
    broken = [finding.name for finding in findings if finding.required and finding.status == "missing"]
    warnings = sum(finding.status != "ok" for finding in findings) - len(broken)
    if broken == ["tensorflow"]:  # which only learners and training need
        console.print(Text("ready for seed actor; not for training, which needs tensorflow", style="bold yellow"))
    elif broken:
        console.print(Text(f"not ready: {', '.join(broken)} must be fixed first", style="bold red"))
    else:
        rest = f"; {warnings} warning{'s' if warnings > 1 else ''} above" if warnings else ""
        console.print(Text(f"ready: seed train --preset {preset or 'cartpole_vtrace'}{rest}", style="bold"))


def _check_python() -> list[Finding]:
    found = platform.python_version()
    enough = sys.version_info >= (3, 11)
    return [
        Finding("seed", "ok", __version__, value=__version__),
        Finding(
            "python",
            "ok" if enough else "missing",
            f"{found} at {sys.executable}",
            "" if enough else "install Python 3.11 or newer",
            required=True,
            value=found,
        ),
    ]


def _check_processor() -> list[Finding]:
    cores = float(len(os.sched_getaffinity(0)))
    with contextlib.suppress(OSError, ValueError):  # no control group (version 2), or "max" for no limit
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        cores = min(cores, float(quota) / float(period))
    few = cores < 2
    return [
        Finding(
            "processor",
            "warning" if few else "ok",
            f"{cores:g} of {os.cpu_count()} cores are usable here",
            "with less than 2 cores learner and actors take turns: ask for more, or expect low speed" if few else "",
            value=cores,
        )
    ]


def _check_memory() -> list[Finding]:
    available, total = available_memory(), int(psutil.virtual_memory().total)
    short = available < 2 * _GIB
    return [
        Finding(
            "memory",
            "warning" if short else "ok",
            f"{available / _GIB:.1f} GiB available here, {total / _GIB:.1f} GiB in this machine",
            "a learner takes about 1 GiB before its first batch: free memory or ask for more" if short else "",
            value={"total_bytes": total, "available_bytes": available},
        )
    ]


def _check_descriptors() -> list[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    low = soft != resource.RLIM_INFINITY and soft < 1024
    bound = "unlimited" if soft == resource.RLIM_INFINITY else f"{soft:,}"
    ceiling = "unlimited" if hard == resource.RLIM_INFINITY else str(hard)
    return [
        Finding(
            "file descriptors",
            "warning" if low else "ok",
            f"{bound} may be open at once",
            f"each actor takes some: raise the limit with `ulimit -n` (up to {ceiling} here)" if low else "",
            value=None if soft == resource.RLIM_INFINITY else soft,
        )
    ]


def _check_gymnasium() -> list[Finding]:
    found = package("gymnasium")
    if found is None:
        return [Finding("gymnasium", "missing", "not installed", "pip install gymnasium", required=True)]
    pygame = package("pygame")
    return [
        Finding("gymnasium", "ok", found, required=True, value=found),
        Finding(
            "rendering",
            "ok" if pygame is not None else "warning",
            "pygame is not installed" if pygame is None else f"pygame {pygame}",
            "" if pygame is not None else "for pictures of CartPole and the like: pip install pygame",
            value=pygame,
        ),
    ]


def _check_atari() -> list[Finding]:
    found = package("ale_py")
    if found is None:
        return [Finding("atari", "warning", "ale-py is not installed", "for Atari games: pip install ale-py")]
    roms = len(importlib.import_module("ale_py.roms").get_all_rom_ids())
    return [
        Finding(
            "atari",
            "ok" if roms else "warning",
            f"ale-py {found}, {roms} games",
            "" if roms else "the games are part of ale-py's package: pip install --force-reinstall ale-py",
            value={"version": found, "games": roms},
        )
    ]


def _check_simulators() -> list[Finding]:
    """Findings on optional simulators, whose absence is no warning."""
    findings = []
    for name, module, install in (
        ("mujoco", "mujoco", "pip install 'seedcli[mujoco]'"),
        ("football", "envpool", "pip install 'seedcli[football]'"),
        ("deepmind lab", "deepmind_lab", "docs/deepmind-lab.md explains how to build it"),
    ):
        found = package(module)
        detail = f"not installed ({install})" if found is None else f"{module} {found}".strip()
        findings.append(Finding(name, "ok", detail, value=found))
    return findings


def _check_video() -> list[Finding]:
    try:
        path = importlib.import_module("imageio_ffmpeg").get_ffmpeg_exe()
    except (ImportError, RuntimeError):
        return [Finding("video", "warning", "no ffmpeg", "for seed eval --video: pip install imageio-ffmpeg")]
    return [Finding("video", "ok", f"ffmpeg at {path}", value=path)]


def _check_shared_memory() -> list[Finding]:
    advice = "seed train --transport zmq works without it; in a container, raise --shm-size"
    try:
        found = os.statvfs("/dev/shm")
    except OSError:
        return [Finding("shared memory", "warning", "/dev/shm does not exist", advice)]
    free = found.f_bavail * found.f_frsize
    enough = free >= 256 * 2**20
    detail = f"{free / _GIB:.1f} GiB free in /dev/shm"
    return [Finding("shared memory", "ok" if enough else "warning", detail, "" if enough else advice, value=free)]


def _check_run_folder() -> list[Finding]:
    folder = Path("runs").absolute()
    while not folder.exists():
        folder = folder.parent
    try:
        begun = time.perf_counter()
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x" * 2**20)
            file.flush()
            os.fsync(file.fileno())
        seconds = time.perf_counter() - begun
    except OSError as error:
        advice = "give the folder of a run with --logdir, or work in a folder you may write to"
        return [Finding("run folder", "missing", f"{folder}: {error.strerror}", advice, required=True)]
    space = os.statvfs(folder)
    free = space.f_bavail * space.f_frsize
    advice = ""
    if free < _GIB:
        advice = "checkpoints need room: free some, or name another disk with --logdir"
    elif seconds > 2:
        advice = "this disk takes seconds to write 1 MiB: name a faster one with --logdir"
    detail = f"{folder} is writable, {free / _GIB:.1f} GiB free"
    return [Finding("run folder", "warning" if advice else "ok", detail, advice, required=True, value=free)]
