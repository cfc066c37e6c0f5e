"""Findings of `seed doctor` on TensorFlow, the devices, and a preset's use of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from seedcli.cluster.hosts import resolve_hosts
from seedcli.config.schema import Config
from seedcli.config.topology import Inventory, make_plan
from seedcli.doctor.findings import Finding, package
from seedcli.errors import UsageError

_TENSORFLOW_SECONDS = 180.0  # import timeout, for a cold network file system
_NVIDIA_SMI_SECONDS = 20.0

# Runs in a separate process: an import that crashes or hangs becomes a finding, and doctor itself stays small.
_PROBE = """
import dataclasses, json, time
begun = time.perf_counter()
import tensorflow as tf
seconds = time.perf_counter() - begun
from seedcli.training.devices import find_inventory
devices = []
for device in tf.config.list_physical_devices():
    name = tf.config.experimental.get_device_details(device).get("device_name") if device.device_type == "GPU" else None
    devices.append({"type": device.device_type, "name": name})
inventory = dataclasses.asdict(find_inventory())
tf.function(lambda x: tf.linalg.matmul(x, x))(tf.ones([8, 8])).numpy()
print("\\n" + json.dumps({"version": tf.__version__, "seconds": seconds, "devices": devices, "inventory": inventory}))
"""


def check_devices(config: Config | None = None) -> list[Finding]:
    """Findings on TensorFlow, its devices and, with a configuration, the device plan."""
    if package("tensorflow") is None:
        advice = (
            "pip install tensorflow, unless this machine only runs actors or plays exported models, which need none"
        )
        return [Finding("tensorflow", "missing", "not installed: training needs it", advice, required=True)]
    try:
        probe = subprocess.run(
            [sys.executable, "-c", _PROBE],
            capture_output=True,
            text=True,
            timeout=_TENSORFLOW_SECONDS,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "1"},
        )
    except subprocess.TimeoutExpired:
        detail = f"was not imported within {_TENSORFLOW_SECONDS:.0f} s"
        advice = "install it on a local disk, or check what keeps this machine busy"
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
    findings = [Finding("tensorflow", "ok", detail, required=True, value=found["version"])]
    memory = _gpu_memory() if any(device["type"] == "GPU" for device in found["devices"]) else {}
    findings.append(describe_devices(found["devices"], memory))
    if config is not None:
        inventory = Inventory(**{**found["inventory"], "models": tuple(found["inventory"]["models"])})
        findings.append(describe_topology(config, inventory))
    return findings


def _gpu_memory() -> dict[str, int]:
    """Memory in bytes of each GPU model, by the driver's name; empty if the driver does not report it."""
    command = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_NVIDIA_SMI_SECONDS, check=True)
        rows = [line.rsplit(",", 1) for line in done.stdout.splitlines() if line.strip()]
        return {name.strip(): int(mebibytes) * 2**20 for name, mebibytes in rows}
    except (OSError, subprocess.SubprocessError, ValueError):
        return {}


def describe_devices(devices: list[dict[str, Any]], memory: Mapping[str, int]) -> Finding:
    """A finding on the devices that TensorFlow sees.

    Args:
        devices: "type" and "name" (null if it has none) of each.
        memory: bytes by GPU name, if known.
    """
    value = [
        {**device, "memory_bytes": memory.get(device["name"])} if device["type"] == "GPU" else device
        for device in devices
    ]
    kinds = [_kind(device) for device in value if device["type"] in ("GPU", "TPU")]
    if kinds:
        listing = ", ".join(f"{kinds.count(kind)} × {kind}" for kind in dict.fromkeys(kinds))
        return Finding("devices", "ok", listing, value=value)
    if Path("/proc/driver/nvidia/version").exists():
        return Finding(
            "devices",
            "warning",
            "this machine has an NVIDIA driver, but TensorFlow sees no GPU",
            "install TensorFlow's CUDA libraries: pip install 'seedcli[gpu]'; keep CUDA_VISIBLE_DEVICES unset",
            value=value,
        )
    return Finding("devices", "ok", "no GPU and no TPU", value=value)


def _kind(device: Mapping[str, Any]) -> str:
    name = device["name"] or {"GPU": "GPU", "TPU": "TPU core"}[device["type"]]
    size = device.get("memory_bytes")
    return f"{name} ({size / 2**30:.0f} GiB)" if size else str(name)


def describe_topology(config: Config, inventory: Inventory, environ: Mapping[str, str] = os.environ) -> Finding:
    """The plan of a configuration for these devices, or why it is refused.

    Args:
        config: the configuration.
        inventory: the devices.
        environ: environment variables, which may name the learner hosts.
    """
    try:
        hosts, index = resolve_hosts(config, environ)
        placed = config.topology.model_copy(update={"hosts": hosts, "host_index": index})
        plan = make_plan(config.model_copy(update={"topology": placed}), inventory)
    except UsageError as error:
        return Finding("topology", "missing", str(error), required=True)  # the sentence says what to do
    return Finding("topology", "ok", "\n".join(plan.describe()), required=True, value=asdict(plan))
