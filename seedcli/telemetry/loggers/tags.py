"""The tags under which loggers get the figures of a line of metrics."""

from __future__ import annotations

from seedcli.telemetry.device_meters import FIGURES
from seedcli.telemetry.fleet import STATES
from seedcli.telemetry.metrics import Snapshot

_GROUPS = {
    "episode": ("episodes", "episode_return", "episode_return_100", "episode_length"),
    "evaluation": ("evaluation_episodes", "evaluation_return", "evaluation_return_20"),
    "speed": ("env_steps_per_second", "env_frames_per_second", "updates_per_second"),
    "progress": ("env_frames", "trained_steps", "learner_updates"),
    "learner": ("loss", "learning_rate", "grad_norm", "dropped_updates", "dropped_unrolls", "learner_memory_mb"),
    "inference": ("policy_lag", "policy_lag_max", "weights_age", "inference_batch_size"),
    "fleet": (
        "actors",
        "envs",
        *(f"actors_{state}" for state in STATES),
        "sessions_lost",
        "protocol_errors",
        "turned_away",
        "environment_failures",
        "wire_mb_per_second",
        "wire_ratio",
    ),
}


def scalars(snapshot: Snapshot) -> dict[str, float]:
    """The figures of a line by tag, such as "episode/episode_return"; those without a value are left out."""
    line = snapshot.to_dict()
    found = {f"{group}/{name}": line[name] for group, names in _GROUPS.items() for name in names}
    found.update((f"replay/{name}", line[name]) for name in snapshot.replay)
    found.update((f"agent/{name}", line[name]) for name in snapshot.extra)
    for quantile, value in (line["inference_latency_ms"] or {}).items():
        found[f"inference/latency_ms_{quantile}"] = value
    for device in snapshot.devices:
        where = f"device/{device.role}_{device.device.replace(':', '')}"
        found.update((f"{where}_{name}", getattr(device, name)) for name in FIGURES)
    return {tag: value for tag, value in found.items() if value is not None}
