"""Contents of the live view's panels: metrics and their labels, the most important first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from seedcli.telemetry.device_meters import DeviceFigures
from seedcli.telemetry.metrics import Snapshot
from seedcli.telemetry.numbers import count, number, tenth


def latency(snapshot: Snapshot, quantile: str) -> float | None:
    """Inference latency in milliseconds at "p50" or "p99"; None if unknown."""
    return (snapshot.inference_latency_ms or {}).get(quantile)


Rows = list[tuple[str, str, str]]  # label, figure, style of the figure


def figures(snapshot: Snapshot) -> dict[str, Rows]:
    """The rows of the panels, most important first: three panels, and one for the replay if there is one."""
    s = snapshot
    bad = "bold red"
    learning: Rows = [("return (100)", tenth(s.episode_return_100), "bold green")]
    if s.evaluation_episodes:
        learning.append(("eval (20)", tenth(s.evaluation_return_20), "bold green"))
    learning += [("episode length", tenth(s.episode_length), "bold"), ("loss", number(s.loss), "bold")]
    if "entropy" in s.extra:
        learning.append(("entropy", number(s.extra["entropy"]), "bold"))
    learning += [
        # A schedule ends at exactly 0, which must not look like a rounded rate.
        ("learning rate", "0" if s.learning_rate == 0 else number(s.learning_rate), "bold"),
        ("gradient norm", number(s.grad_norm), "bold"),
    ]
    learning += [
        (name.replace("_", " "), number(value), "bold") for name, value in s.extra.items() if name != "entropy"
    ]
    framed = s.env_frames != s.env_steps  # otherwise they are equal
    panels = {
        "speed": [
            ("steps/s", count(s.env_steps_per_second), "bold cyan"),
            *([("frames/s", count(s.env_frames_per_second), "bold")] if framed else []),
            ("updates/s", tenth(s.updates_per_second), "bold"),
            ("trained steps", count(s.trained_steps), "bold"),
            ("updates", count(s.learner_updates), "bold"),
            ("episodes", count(s.episodes), "bold"),
            *([("frames", count(s.env_frames), "bold")] if framed else []),
            ("memory MiB", count(None if s.learner_memory_mb is None else round(s.learner_memory_mb)), "bold"),
        ],
        "learning": learning,
        "inference": [
            ("batch size", tenth(s.inference_batch_size), "bold"),
            ("latency p50 ms", tenth(latency(s, "p50")), "bold"),
            ("latency p99 ms", tenth(latency(s, "p99")), "bold"),
            ("policy lag", tenth(s.policy_lag), "bold"),
            ("largest lag", tenth(s.policy_lag_max), "bold"),
            *([("weights age", count(s.weights_age), "bold")] if s.weights_age is not None else []),
            ("dropped updates", count(s.dropped_updates), bad if s.dropped_updates else "bold"),
            ("protocol errors", count(s.protocol_errors), bad if s.protocol_errors else "bold"),
            ("wire MB/s", tenth(s.wire_mb_per_second), "bold"),
            ("wire ratio", tenth(s.wire_ratio), "bold"),
        ],
    }
    if s.environment_failures:
        panels["inference"].insert(0, ("failed envs", count(s.environment_failures), bad))
    if s.replay:
        dropped: Rows = [("dropped unrolls", count(s.dropped_unrolls), bad)] if s.dropped_unrolls else []
        panels["replay"] = dropped + _replay_rows(s.replay)
    elif s.dropped_unrolls:
        panels["inference"].insert(0, ("dropped unrolls", count(s.dropped_unrolls), bad))
    return panels


# Most important first, with labels short enough to fit beside their figures.
_REPLAY_LABELS = {
    "replay_size": "unrolls",
    "replay_ratio": "replay ratio",
    "priority_mean": "priority",
    "priority_max": "priority max",
    "epsilon_min": "epsilon min",
    "epsilon_max": "epsilon max",
    "replay_mb": "size MB",
    "bytes_per_unroll": "bytes each",
}


def _replay_rows(figures: Mapping[str, float]) -> Rows:
    names = [*(name for name in _REPLAY_LABELS if name in figures), *(figures.keys() - _REPLAY_LABELS.keys())]
    whole = ("replay_size", "bytes_per_unroll")
    return [
        (
            _REPLAY_LABELS.get(name, name.replace("_", " ")),
            count(round(value)) if name in whole else number(value),
            "bold",
        )
        for name, value in ((name, figures[name]) for name in names)
    ]


DeviceRow = tuple[str, str, str, str, str, str]


def device_rows(devices: Sequence[DeviceFigures], lines: int) -> list[DeviceRow]:
    """One row per device and role: name, role, share of busy time, batches, their size, data transferred to it.

    If there are more than `lines`, the last row is the average of the rest.
    """
    shown = devices if len(devices) <= lines else devices[: max(0, lines - 1)]
    rows = [_device_row(figures) for figures in shown]
    rest = devices[len(shown) :]
    if rest and lines:
        mean = sum(figures.utilisation for figures in rest) / len(rest)
        rows.append((f"and {len(rest)} more", "", f"{mean:.0%} busy", "", "", ""))
    return rows


def _device_row(figures: DeviceFigures) -> DeviceRow:
    batches, of = ("updates", "unrolls") if figures.role == "training" else ("batches", "envs")
    return (
        figures.device,
        figures.role,
        f"{figures.utilisation:.0%} busy",
        f"{tenth(figures.batches_per_second)} {batches}/s",
        f"{tenth(figures.batch_rows)} {of}",
        f"{tenth(figures.transfer_mb_per_second)} MB/s in",
    )
