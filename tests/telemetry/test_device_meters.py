"""Figures of devices: computed from counters, written to metrics, and shown if there is more than one device."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from seedcli.telemetry.device_meters import DeviceFigures, DeviceMeter, DeviceRole, DeviceWatch, worth_showing
from seedcli.telemetry.fleet import ActorRow
from seedcli.telemetry.live_figures import device_rows
from seedcli.telemetry.live_layout import Picture, ViewState
from seedcli.telemetry.loggers.tags import scalars
from seedcli.telemetry.metrics import MetricsWriter, Snapshot


def figures(device: str, role: DeviceRole = "inference", utilisation: float = 0.5) -> DeviceFigures:
    return DeviceFigures(device, role, utilisation, 123.4, 64.0, 0.1, 12.3)


def picture(width: int, height: int, devices: tuple[DeviceFigures, ...], **values: object) -> list[str]:
    fleet = [ActorRow(f"actor-{i}", f"10.0.0.{i}:5000", "zmq", 16, 3100.0, 0.2, "stepping") for i in range(3)]
    snapshot = Snapshot(env_steps=1000, devices=devices, extra={"entropy": 0.5}, **values)  # type: ignore[arg-type]
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=False)
    header = {"preset": "cartpole_vtrace", "folder": "runs/x"}
    console.print(Picture(ViewState(header, 10.0, snapshot, fleet, 5000, 60.0, [1.0, 2.0])))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_figures_are_differences_since_the_last_look() -> None:
    watch = DeviceWatch()
    first, second = DeviceMeter("GPU:0", "training"), DeviceMeter("GPU:0", "inference")
    first.busy, first.batches, first.rows, first.transfer_seconds, first.transfer_bytes = 1.5, 4, 128, 0.5, 8_000_000
    training, inference = watch.sample([first, second], 2.0)
    assert training == DeviceFigures("GPU:0", "training", 0.75, 2.0, 32.0, 0.25, 4.0)
    assert inference == DeviceFigures("GPU:0", "inference", 0.0, 0.0, None, 0.0, 0.0)
    first.busy, first.batches, first.rows = 2.5, 5, 144
    second.busy = 9.0  # more than the interval: it began before the last look
    training, inference = watch.sample([first, second], 4.0)
    assert training == DeviceFigures("GPU:0", "training", 0.25, 0.25, 16.0, 0.0, 0.0)
    assert inference.utilisation == 1.0


def test_devices_are_written_as_a_list_and_as_scalars(tmp_path: Path) -> None:
    snapshot = Snapshot(env_steps=5, time=1.0, devices=(figures("GPU:0", "training"), figures("GPU:1")), weights_age=3)
    writer = MetricsWriter(tmp_path / "metrics.jsonl", resume=False)
    writer.write(snapshot)
    writer.write(snapshot.without_wall_clock())
    writer.close()
    line, still = (json.loads(text) for text in (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert [(d["device"], d["role"]) for d in line["devices"]] == [("GPU:0", "training"), ("GPU:1", "inference")]
    assert line["devices"][1]["utilisation"] == 0.5 and line["devices"][1]["batch_rows"] == 64.0
    assert line["weights_age"] == 3 and still["devices"] == [], "deterministic lines hold no timing"
    seen = scalars(snapshot)
    assert seen["device/inference_GPU1_batches_per_second"] == 123.4
    assert seen["inference/weights_age"] == 3


def test_a_single_processor_is_not_shown() -> None:
    both = (figures("CPU:0", "training"), figures("CPU:0"))
    assert not worth_showing(both) and not worth_showing(())
    assert worth_showing((figures("GPU:0", "training"), figures("GPU:0")))
    assert worth_showing((figures("CPU:0", "training"), figures("CPU:1")))
    assert not any("busy" in line for line in picture(120, 40, both))


@pytest.mark.parametrize(("width", "height"), [(80, 24), (80, 40), (120, 30), (200, 50)])
def test_each_device_has_a_line_and_the_rest_still_fits(width: int, height: int) -> None:
    lines = picture(width, height, (figures("GPU:0", "training", 0.86), figures("GPU:1", "inference", 0.31)))
    shown = [line for line in lines if "busy" in line]
    assert len(shown) == 2 and len(lines) <= height
    assert "GPU:0" in shown[0] and "training" in shown[0] and "86% busy" in shown[0] and "updates/s" in shown[0]
    assert "GPU:1" in shown[1] and "31% busy" in shown[1] and "64.0 envs" in shown[1] and "12.3 MB/s in" in shown[1]
    text = "\n".join(lines)
    assert "actor-0" in text and "return" in text and "gradient norm" in text


@pytest.mark.parametrize("height", range(14, 40))
def test_many_devices_leave_room_for_the_fleet(height: int) -> None:
    devices = tuple(figures(f"GPU:{i}", "inference", i / 10) for i in range(8))
    lines = picture(80, height, devices)
    assert len(lines) < height
    shown = [line for line in lines if "busy" in line]
    if height >= 20:
        assert shown and any("fleet: 3 actors" in line for line in lines)
    if 1 < len(shown) < 8:
        hidden = range(len(shown) - 1, 8)
        assert f"and {len(hidden)} more" in shown[-1]
        assert f"{sum(hidden) / len(hidden) / 10:.0%} busy" in shown[-1]


def test_the_last_line_counts_the_devices_that_do_not_fit() -> None:
    devices = [figures(f"GPU:{i}") for i in range(5)]
    assert len(device_rows(devices, 5)) == 5
    assert [row[0] for row in device_rows(devices, 3)] == ["GPU:0", "GPU:1", "and 3 more"]
    assert [row[0] for row in device_rows(devices, 1)] == ["and 5 more"]
    assert device_rows(devices, 0) == []


def test_the_age_of_weights_is_shown_if_not_every_update_is_published() -> None:
    devices = (figures("GPU:0", "training"), figures("GPU:1"))
    assert any("weights age" in line for line in picture(120, 40, devices, weights_age=7))
    assert not any("weights age" in line for line in picture(120, 40, devices))
