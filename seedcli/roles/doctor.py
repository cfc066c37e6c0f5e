"""`seed doctor`: what this machine can run, each finding with what to do about it."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import platform
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from seedcli import __version__
from seedcli.errors import EXIT_DONE, EXIT_FAILED
from seedcli.roles.doctor_net import ports, token, transports
from seedcli.roles.findings import Finding, package

_GIB = 2**30
_TENSORFLOW_SECONDS = 180.0  # longest an import may take, from a cold network file system


def run_doctor(json_output: bool) -> int:
    """Look at everything, print it to stdout; returns 1 if something that training needs is missing, else 0."""
    if not json_output:
        print("looking (TensorFlow takes some seconds to import)", file=sys.stderr)
    findings = diagnose()
    broken = [finding for finding in findings if finding.required and finding.status == "missing"]
    if json_output:
        print(json.dumps({"ok": not broken, "findings": [asdict(finding) for finding in findings]}, indent=2))
    else:
        print_findings(Console(), findings)
    return EXIT_FAILED if broken else EXIT_DONE


def diagnose() -> list[Finding]:
    """Every finding; a check that fails unexpectedly becomes a finding that says so."""
    checks: dict[str, Callable[[], list[Finding]]] = {
        "python": _python,
        "processor": _processor,
        "memory": _memory,
        "file descriptors": _descriptors,
        "tensorflow": _tensorflow,
        "gymnasium": _gymnasium,
        "atari": _atari,
        "simulators": _simulators,
        "video": _video,
        "transports": transports,
        "ports": ports,
        "token": token,
        "shared memory": _shared_memory,
        "run folder": _run_folder,
    }
    findings: list[Finding] = []
    for name, check in checks.items():
        try:
            findings += check()
        except Exception as error:  # a doctor who falls over a patient helps nobody
            detail = f"could not be looked at: {type(error).__name__}: {error}"
            findings.append(Finding(name, "warning", detail, "report this with the output of seed doctor --json"))
    return findings


def print_findings(console: Console, findings: list[Finding]) -> None:
    """Print findings as a table, what to do under each."""
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
    if broken:
        console.print(Text(f"not ready: {', '.join(broken)} must be put right first", style="bold red"))
    else:
        rest = f"; {warnings} thing{'s' if warnings > 1 else ''} to look at above" if warnings else ""
        console.print(Text(f"ready: seed train --preset cartpole_vtrace{rest}", style="bold"))


def _python() -> list[Finding]:
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


def _cgroup(file: str) -> str | None:
    """A limit of the container we run in (control group version 2), None where there is none."""
    try:
        text = Path("/sys/fs/cgroup", file).read_text().split()[0]
    except (OSError, IndexError):
        return None
    return None if text == "max" else text


def _processor() -> list[Finding]:
    cores = float(len(os.sched_getaffinity(0)))
    quota = _cgroup("cpu.max")
    if quota is not None:
        period = float(Path("/sys/fs/cgroup/cpu.max").read_text().split()[1])
        cores = min(cores, float(quota) / period)
    few = cores < 2
    return [
        Finding(
            "processor",
            "warning" if few else "ok",
            f"{cores:g} of {os.cpu_count()} cores may be used here",
            "with less than 2 cores learner and actors take turns: ask for more, or expect low speed" if few else "",
            value=cores,
        )
    ]


def _memory() -> list[Finding]:
    lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    total, available = (int(lines[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    limit = _cgroup("memory.max")
    if limit is not None:
        used = int(_cgroup("memory.current") or 0)
        total, available = min(total, int(limit)), min(available, int(limit) - used)
    short = available < 2 * _GIB
    return [
        Finding(
            "memory",
            "warning" if short else "ok",
            f"{available / _GIB:.1f} GiB available of {total / _GIB:.1f} GiB",
            "a learner takes about 1 GiB before its first batch: free memory or ask for more" if short else "",
            value={"total_bytes": total, "available_bytes": available},
        )
    ]


def _descriptors() -> list[Finding]:
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


# Runs in a process of its own: an import that crashes or hangs is a finding, and doctor itself stays small.
_PROBE = """
import json, time
begun = time.perf_counter()
import tensorflow as tf
seconds = time.perf_counter() - begun
devices = []
for device in tf.config.list_physical_devices():
    name = tf.config.experimental.get_device_details(device).get("device_name") if device.device_type == "GPU" else None
    devices.append({"type": device.device_type, "name": name})
tf.function(lambda x: tf.linalg.matmul(x, x))(tf.ones([8, 8])).numpy()
build = tf.sysconfig.get_build_info()
print("\\n" + json.dumps({"version": tf.__version__, "seconds": seconds, "devices": devices,
                  "cuda": build.get("cuda_version") if build.get("is_cuda_build") else None}))
"""


def _tensorflow() -> list[Finding]:
    if package("tensorflow") is None:
        return [Finding("tensorflow", "missing", "not installed", "pip install tensorflow", required=True)]
    try:
        probe = subprocess.run(
            [sys.executable, "-c", _PROBE],
            capture_output=True,
            text=True,
            timeout=_TENSORFLOW_SECONDS,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "1"},
        )
    except subprocess.TimeoutExpired:
        detail = f"has not been imported within {_TENSORFLOW_SECONDS:.0f} s"
        advice = "install it on a local disk, or see what keeps this machine busy"
        return [Finding("tensorflow", "missing", detail, advice, required=True)]
    if probe.returncode < 0:
        name = signal.Signals(-probe.returncode).name
        old = name == "SIGILL"
        advice = "its processor is too old for this build (AVX is needed)" if old else "reinstall tensorflow"
        return [Finding("tensorflow", "missing", f"dies with {name} when imported", advice, required=True)]
    if probe.returncode > 0:
        reason = (probe.stderr.strip().splitlines() or ["no message"])[-1]
        advice = "pip install --force-reinstall tensorflow"
        return [Finding("tensorflow", "missing", f"does not work: {reason}", advice, required=True)]
    found = json.loads(probe.stdout.splitlines()[-1])
    detail = f"{found['version']}, imported in {found['seconds']:.1f} s"
    return [Finding("tensorflow", "ok", detail, required=True, value=found["version"]), _devices(found)]


def _devices(found: dict[str, Any]) -> Finding:
    accelerators = [d for d in found["devices"] if d["type"] in ("GPU", "TPU")]
    names = [device["name"] or device["type"] for device in accelerators]
    driver = Path("/proc/driver/nvidia/version").exists()
    if accelerators:
        listing = ", ".join(f"{names.count(name)} × {name}" for name in dict.fromkeys(names))
        return Finding("devices", "ok", listing, value=found["devices"])
    if driver:
        return Finding(
            "devices",
            "warning",
            "this machine has an NVIDIA driver, but TensorFlow sees no GPU",
            "install TensorFlow's CUDA libraries: pip install 'seedcli[gpu]'; keep CUDA_VISIBLE_DEVICES unset",
            value=found["devices"],
        )
    return Finding("devices", "ok", "CPU only (no accelerator on this machine)", value=found["devices"])


def _gymnasium() -> list[Finding]:
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


def _atari() -> list[Finding]:
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


def _simulators() -> list[Finding]:
    """Those that only some need, so that their absence is nothing to look at."""
    findings = []
    for name, module, install in (
        ("mujoco", "mujoco", "pip install 'seedcli[mujoco]'"),
        ("football", "envpool", "pip install 'seedcli[football]'"),
        ("deepmind lab", "deepmind_lab", "docs/deepmind-lab.md says how it is built"),
    ):
        found = package(module)
        detail = f"not installed ({install})" if found is None else f"{module} {found}".strip()
        findings.append(Finding(name, "ok", detail, value=found))
    return findings


def _video() -> list[Finding]:
    try:
        path = importlib.import_module("imageio_ffmpeg").get_ffmpeg_exe()
    except (ImportError, RuntimeError):
        return [Finding("video", "warning", "no ffmpeg", "for seed eval --video: pip install imageio-ffmpeg")]
    return [Finding("video", "ok", f"ffmpeg at {path}", value=path)]


def _shared_memory() -> list[Finding]:
    advice = "seed train --transport zmq does without it; in a container, raise --shm-size"
    try:
        found = os.statvfs("/dev/shm")
    except OSError:
        return [Finding("shared memory", "warning", "/dev/shm is not there", advice)]
    free = found.f_bavail * found.f_frsize
    enough = free >= 256 * 2**20
    detail = f"{free / _GIB:.1f} GiB free in /dev/shm"
    return [Finding("shared memory", "ok" if enough else "warning", detail, "" if enough else advice, value=free)]


def _run_folder() -> list[Finding]:
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
