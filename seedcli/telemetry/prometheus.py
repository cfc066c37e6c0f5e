"""The newest metrics in Prometheus' format: names, units and kinds."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from seedcli.telemetry.device_meters import DeviceFigures
from seedcli.telemetry.fleet import STATES, ActorRow, count_states
from seedcli.telemetry.metrics import Snapshot

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True)
class Status:
    """A learner's last report.

    Attributes:
        run: properties of the run by name, such as "preset", "folder", "environment".
        total_steps: environment steps at which training ends.
        snapshot: the newest metrics; None before the first.
        fleet: its actors.
        turn_seconds: seconds since the inference thread's last iteration at the time of the report; None before it
            serves.
    """

    run: Mapping[str, str] = field(default_factory=dict)
    total_steps: int = 0
    snapshot: Snapshot | None = None
    fleet: Sequence[ActorRow] = ()
    turn_seconds: float | None = None


@dataclass(frozen=True)
class _Figure:
    """A field of `Snapshot` or `DeviceFigures` under its name for Prometheus, in base units.

    A counter gets "_total" besides.
    """

    field: str
    name: str
    kind: Literal["counter", "gauge"]
    help: str
    scale: float = 1.0


def _counter(field: str, help: str) -> _Figure:
    return _Figure(field, f"seed_{field}", "counter", help)


def _gauge(field: str, name: str, help: str, scale: float = 1.0) -> _Figure:
    return _Figure(field, f"seed_{name}", "gauge", help, scale)


# Every field of Snapshot that is one number; the others are in `_LearnerCollector`.
FIGURES = (
    _gauge("time", "snapshot_timestamp_seconds", "When these figures were taken, Unix time."),
    _counter("env_steps", "Environment steps taken by all actors, over all starts of the run."),
    _counter("env_frames", "Simulator frames of all environment steps, over all starts of the run."),
    _gauge("env_steps_per_second", "env_steps_per_second", "Environment steps per second."),
    _gauge("env_frames_per_second", "env_frames_per_second", "Simulator frames per second."),
    _counter("trained_steps", "Environment steps that training has consumed."),
    _counter("learner_updates", "Updates applied to the network."),
    _gauge("updates_per_second", "learner_updates_per_second", "Updates per second."),
    _counter("episodes", "Episodes finished."),
    _gauge("episode_return", "episode_return", "Mean raw return of the episodes that finished last."),
    _gauge("episode_return_100", "episode_return_100", "Mean raw return of the last 100 episodes."),
    _gauge("episode_length", "episode_length_steps", "Mean length of the episodes that finished last."),
    _counter("evaluation_episodes", "Episodes finished by environments that only evaluate."),
    _gauge("evaluation_return", "evaluation_return", "Mean raw return of the evaluation episodes that finished last."),
    _gauge("evaluation_return_20", "evaluation_return_20", "Mean raw return of the last 20 evaluation episodes."),
    _gauge("policy_lag", "policy_lag_updates", "Mean updates between acting on a record and training on it."),
    _gauge(
        "policy_lag_max", "policy_lag_max_updates", "Maximum updates between acting on a record and training on it."
    ),
    _gauge("weights_age", "inference_weights_age_updates", "Updates by which the weights of inference lag."),
    _gauge("inference_batch_size", "inference_batch_environments", "Mean environments of an inference batch."),
    _gauge("loss", "learner_loss", "Loss of the last update."),
    _gauge("learning_rate", "learner_learning_rate", "Learning rate of the last update."),
    _gauge("grad_norm", "learner_gradient_norm", "Global gradient norm of the last update, before clipping."),
    _counter("dropped_updates", "Updates dropped because the loss or a gradient was non-finite."),
    _counter("dropped_unrolls", "Unrolls dropped because a reward or priority was non-finite."),
    _gauge("actors", "actors_connected", "Actors connected."),
    _gauge("envs", "environments", "Environments of the actors connected."),
    _counter("sessions_lost", "Sessions that ended without a GOODBYE, since the learner started."),
    _counter("protocol_errors", "Connections ended for breaking the protocol."),
    _counter("turned_away", "Closed connections of unauthenticated peers."),
    _counter("environment_failures", "Environment failures reported by actors."),
    _gauge("wire_mb_per_second", "wire_bytes_per_second", "Bytes of encoded rows received per second.", 1e6),
    _gauge("wire_ratio", "wire_ratio", "Decoded bytes of rows per encoded byte."),
    _gauge("learner_memory_mb", "learner_resident_memory_bytes", "Resident memory of the learner.", 2.0**20),
)
# Known figures of replays; any other is seed_replay_<its name>.
_REPLAY = {
    "replay_size": _gauge("replay_size", "replay_unrolls", "Unrolls in the replay."),
    "replay_mb": _gauge("replay_mb", "replay_bytes", "Bytes that the unrolls in the replay take.", 1e6),
    "bytes_per_unroll": _gauge("bytes_per_unroll", "replay_unroll_bytes", "Bytes of an unroll on average."),
    "replay_ratio": _gauge("replay_ratio", "replay_ratio", "Average number of times a transition has been trained on."),
    "epsilon_min": _gauge("epsilon_min", "exploration_epsilon_min", "Smallest exploration epsilon."),
    "epsilon_max": _gauge("epsilon_max", "exploration_epsilon_max", "Largest exploration epsilon."),
}
# Of each device in each role: field of `DeviceFigures`.
_DEVICE = (
    _gauge("utilisation", "device_utilisation_ratio", "Share of the time with a batch or an update in progress."),
    _gauge("batches_per_second", "device_batches_per_second", "Inference batches, or updates, per second."),
    _gauge("batch_rows", "device_batch_rows", "Mean environments of an inference batch, unrolls of a training batch."),
    _gauge("transfer_share", "device_transfer_ratio", "Share of the time with a transfer to the device in progress."),
    _gauge(
        "transfer_mb_per_second", "device_transfer_bytes_per_second", "Bytes transferred to the device per second.", 1e6
    ),
)
_QUANTILES = {"p50": "0.5", "p99": "0.99"}
_ACTOR = ("actor", "transport", "address")


class _LearnerCollector(Collector):
    """Turns one `Status` into metrics."""

    def __init__(self, status: Status) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        status = self._status
        yield InfoMetricFamily(
            "seed_run", "Preset, folder, environment, algorithm and seed of the run.", value=dict(status.run)
        )
        yield GaugeMetricFamily(
            "seed_run_target_steps", "Environment steps at which training ends.", status.total_steps
        )
        if status.turn_seconds is not None:
            described = "Time since the inference thread's last progress, when these figures were taken."
            yield GaugeMetricFamily("seed_inference_turn_age_seconds", described, status.turn_seconds)
        if status.snapshot is not None:
            yield from _snapshot(status.snapshot)
            yield from _devices(status.snapshot.devices)
        yield from _fleet(status.fleet)


def _one(figure: _Figure, value: float | None) -> Iterator[Metric]:
    """A figure's metric; none if it has no value."""
    if value is not None:
        family = CounterMetricFamily if figure.kind == "counter" else GaugeMetricFamily
        yield family(figure.name, figure.help, value=float(value) * figure.scale)


def _snapshot(snapshot: Snapshot) -> Iterator[Metric]:
    for figure in FIGURES:
        yield from _one(figure, getattr(snapshot, figure.field))
    if snapshot.inference_latency_ms:
        family = GaugeMetricFamily(
            "seed_inference_latency_seconds", "Time from a message's arrival to its answer.", labels=("quantile",)
        )
        for name, milliseconds in snapshot.inference_latency_ms.items():
            family.add_metric((_QUANTILES.get(name, name),), milliseconds / 1000)
        yield family
    described: dict[str, tuple[_Figure, float]] = {}
    for name, value in snapshot.replay.items():
        plain = name.removeprefix("replay_")
        figure = _REPLAY.get(name) or _gauge(name, f"replay_{_clean(plain)}", f"The replay's {plain}.")
        described.setdefault(figure.name, (figure, value))
    for name, value in snapshot.extra.items():
        figure = _gauge(name, f"agent_{_clean(name)}", f"The algorithm's own {name}.")
        described.setdefault(figure.name, (figure, value))
    for figure, value in described.values():
        yield from _one(figure, value)


def _devices(devices: Sequence[DeviceFigures]) -> Iterator[Metric]:
    for figure in _DEVICE if devices else ():
        family = GaugeMetricFamily(figure.name, figure.help, labels=("device", "role"))
        for device in devices:
            value = getattr(device, figure.field)
            if value is not None:
                family.add_metric((device.device, device.role), value * figure.scale)
        yield family


def _clean(name: str) -> str:
    """A part of a metric's name, from an algorithm's name for the figure."""
    return re.sub(r"[^a-zA-Z0-9_]", "_", name)


def _fleet(fleet: Sequence[ActorRow]) -> Iterator[Metric]:
    states = GaugeMetricFamily("seed_actors", "Actors by state.", labels=("state",))
    for state, number in count_states(fleet).items():
        states.add_metric((state,), number)
    yield states
    environments = GaugeMetricFamily("seed_actor_environments", "Environments of an actor.", labels=_ACTOR)
    steps = CounterMetricFamily(
        "seed_actor_steps", "Environment records received in the actor's session.", labels=_ACTOR
    )
    rate = GaugeMetricFamily("seed_actor_steps_per_second", "Environment steps per second of the actor.", labels=_ACTOR)
    seen = GaugeMetricFamily("seed_actor_last_seen_seconds", "Time since the actor's last message.", labels=_ACTOR)
    state_of = GaugeMetricFamily("seed_actor_state", "1 for the actor's current state.", labels=(*_ACTOR, "state"))
    for row in fleet:
        labels = (row.actor_id, row.transport, row.address)
        environments.add_metric(labels, row.envs)
        steps.add_metric(labels, row.steps)
        if row.steps_per_second is not None:
            rate.add_metric(labels, row.steps_per_second)
        if row.last_seen_seconds is not None:
            seen.add_metric(labels, row.last_seen_seconds)
        for state in STATES:
            state_of.add_metric((*labels, state), float(row.state == state))
    yield from (environments, steps, rate, seen, state_of)


def render(status: Status) -> bytes:
    """The text that Prometheus scrapes (its text format 0.0.4), this process' own figures included."""
    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    registry.register(_LearnerCollector(status))
    return generate_latest(registry)
