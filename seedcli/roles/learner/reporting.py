"""The reporter: reads the learner's counters periodically and updates the metrics file, the view and monitoring."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import shlex
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
from rich.console import Console

from seedcli.errors import EXIT_DONE
from seedcli.roles.learner.device_report import DeviceReport
from seedcli.roles.run_folder import RunFolder, run_of_host
from seedcli.serving.fleet_report import FleetWatch
from seedcli.telemetry.diagnosis import Diagnosis
from seedcli.telemetry.ending import Summary, print_largest_parts, print_profile, print_summary, summary_lines
from seedcli.telemetry.exporter import Health, Phase
from seedcli.telemetry.fleet import CONNECTED, ActorRow, count_states
from seedcli.telemetry.live import View
from seedcli.telemetry.loggers.registry import open_loggers
from seedcli.telemetry.logs import log_once_per, log_to_file
from seedcli.telemetry.metrics import COUNTERS, MetricsWriter, Snapshot
from seedcli.telemetry.prometheus import Status
from seedcli.training.checkpoint import list_checkpoints
from seedcli.training.trainer import UpdateResult

if TYPE_CHECKING:
    from seedcli.roles.learner.threads import Learner

_log = logging.getLogger(__name__)

_CLOSE_SECONDS = 30.0  # for loggers to store what is pending
_INTERRUPTED_SECONDS = 5.0  # the same after a signal, which ends a run within 15 s
TURN_SECONDS = 30.0  # an inference thread without progress for longer counts as stalled


def _mean(values: list[float]) -> float | None:
    return float(np.mean(values)) if values else None


class Reporter:
    """Reports a learner's progress. Used by the main thread; `status` and `health` may be read from any thread.

    Args:
        learner: the learner to report.
        folder: the run's folder, for the metrics file.
        view: shows progress in the terminal.
        resumed_at: environment steps of the checkpoint a resumed run continues from; None for a new run.
        wall_clock: False in deterministic mode: metrics that depend on the clock are left out.
        resumed_with: the command that resumes a run on one host.

    Attributes:
        status: the last report; replaced as a whole, never mutated.
    """

    def __init__(
        self,
        learner: Learner,
        folder: RunFolder,
        view: View,
        *,
        resumed_at: int | None,
        wall_clock: bool = True,
        resumed_with: str = "seed learner",
    ) -> None:
        config = learner.config
        self._learner = learner
        self._folder = folder
        self._view = view
        self._wall_clock = wall_clock
        self._total = config.run.steps
        self._resumed_at = resumed_at or 0
        self._resumed_with = resumed_with
        self._writer = MetricsWriter(folder.metrics_path, folder.resume)
        void = self._writer.truncate_after(learner.start_counters) if folder.resume else None
        chief = learner.team is None or learner.team.chief
        self._loggers = open_loggers(folder.path, config, resumed_at=void, chief=chief)
        self._process = psutil.Process()
        self._memory_mb = 0.0
        self._begun = self._last_time = time.monotonic()
        self._last = self._counters()
        self._rates: dict[str, float] = {}
        self._fleet = FleetWatch(learner.service, config.net.heartbeat_seconds)
        self._devices: DeviceReport | None = None
        self._diagnosis: Diagnosis | None = None
        self._phase: Phase = "starting"
        self._phase_begun = self._begun
        self.status = Status(
            run={
                "preset": config.run.preset or "custom",
                "folder": str(folder.path),
                "environment": f"{config.environment.family}/{config.environment.id}",
                "algorithm": f"{config.agent.algorithm}, {config.agent.network.torso}",
                "seed": str(config.run.seed),
            },
            total_steps=config.run.steps,
        )

    def _counters(self) -> dict[str, int]:
        """All counters of a line, read together while training continues."""
        core = self._learner.core
        if core is None:
            return dict.fromkeys(("batches", "batch_rows", "wire", "raw"), 0) | self._learner.start_counters
        stats, service, counters = core.engine.stats, self._learner.service, core.counters()
        return {
            **{name: counters[name] for name in COUNTERS},
            "wire": service.row_bytes_received,
            "raw": service.row_bytes_raw,
            "batches": stats.batches,
            "batch_rows": stats.batch_rows,
        }

    def start(self) -> None:
        """Start the view."""
        self._view.start(self.status.run)

    def refresh(self) -> None:
        """Refresh the view's clock; cheap."""
        self._view.update(self.status.snapshot, self.status.fleet, self._total, self._warning())

    def _warning(self) -> str:
        """The current problem in training; "" if there is none."""
        return self._diagnosis.warning if self._diagnosis is not None else ""

    def enter(self, phase: Phase) -> None:
        """Set the run's phase: "serving" once the learner accepts actors, "stopping" when it begins to stop."""
        self._phase, self._phase_begun = phase, time.monotonic()

    def training_ended(self) -> None:
        """Measure the rates of the last line now, so that they exclude the time that stopping takes."""
        self._measure_rates(self._counters(), time.monotonic())

    def health(self) -> Health:
        """The learner's health now: slow training is no failure, a stalled inference thread is."""
        phase, failure, age = self._phase, self._learner.failure, self._turn_age()
        if failure is not None:
            return Health(phase, f"a thread has failed: {str(failure) or type(failure).__name__}")
        if age is not None and age > TURN_SECONDS:
            return Health(phase, f"the inference thread has been stalled for {age:.0f} s")
        return Health(phase)

    def _turn_age(self) -> float | None:
        """Seconds since the inference thread's last progress; None while it need not run."""
        if self._phase != "serving":
            return None
        return time.monotonic() - max(self._learner.service.last_turn, self._phase_begun)

    def report(self) -> Snapshot:
        """Take a snapshot, write it to the metrics file and show it."""
        fleet = self._fleet.sample()
        snapshot = self._take(fleet)
        self._diagnose(snapshot)
        self.status = dataclasses.replace(self.status, snapshot=snapshot, fleet=fleet, turn_seconds=self._turn_age())
        line = snapshot if self._wall_clock else snapshot.without_wall_clock()
        self._loggers.write(line)
        try:
            self._writer.write(line)
        except OSError as error:
            # A full disk must not end the training: this line is lost, later ones may succeed.
            log_once_per("metrics", 60.0, _log, logging.ERROR, "metrics cannot be written: %s", error)
        self._view.update(snapshot, fleet, self._total, self._warning())
        return snapshot

    def _diagnose(self, snapshot: Snapshot) -> None:
        """Log each new problem once."""
        core, config = self._learner.core, self._learner.config
        if core is None or not snapshot.extra:
            return
        if self._diagnosis is None:
            values = config.model_dump(mode="json", by_alias=True)
            self._diagnosis = Diagnosis(core.agent.algorithm.symptoms, config.run.steps, values)
        if warning := self._diagnosis.update(snapshot.env_steps, snapshot.learner_updates, snapshot.extra):
            _log.warning("%s", warning)

    def _take(self, fleet: Sequence[ActorRow]) -> Snapshot:
        now = time.monotonic()
        elapsed = max(now - self._last_time, 1e-9)
        counters = self._counters()
        grown = self._increase(counters)
        if self._phase != "stopping":
            self._measure_rates(counters, now)
        self._last, self._last_time = counters, now
        states = count_states(fleet)
        fields: dict[str, Any] = {
            "time": time.time(),
            **{name: counters[name] for name in COUNTERS},
            **self._rates,
            "actors": sum(states[state] for state in CONNECTED),
            "envs": sum(row.envs for row in fleet if row.state in CONNECTED),
            **{f"actors_{state}": number for state, number in states.items()},
            "sessions_lost": self._learner.service.sessions_lost,
            "protocol_errors": self._learner.service.protocol_errors,
            "turned_away": self._learner.service.turned_away,
            "environment_failures": self._learner.service.environment_failures,
            "wire_ratio": grown["raw"] / grown["wire"] if grown["wire"] else None,
            "learner_memory_mb": self._memory(),
        }
        core = self._learner.core
        if core is not None:
            fields |= self._engine_fields(grown)
            fields |= self._training_fields(elapsed)
            fields["replay"] = core.source_stats()
            # A replay's count includes the engine's, once they reach it.
            fields["dropped_unrolls"] = max(core.engine.stats.dropped_unrolls, core.source.dropped)
        return Snapshot(**fields)

    def _increase(self, counters: dict[str, int]) -> dict[str, int]:
        """The increase of each counter since the last line."""
        return {name: counters[name] - self._last[name] for name in counters}

    def _measure_rates(self, counters: dict[str, int], now: float) -> None:
        """Set the rates over the time since the last line; keep the old ones if that is too short to measure."""
        seconds = max(now - self._last_time, 1e-9)
        if self._rates and seconds < 0.5 * self._learner.config.telemetry.interval_seconds:
            return
        grown = self._increase(counters)
        self._rates = {
            "env_steps_per_second": grown["env_steps"] / seconds,
            "env_frames_per_second": grown["env_frames"] / seconds,
            "updates_per_second": grown["learner_updates"] / seconds,
            "wire_mb_per_second": grown["wire"] / seconds / 1e6,
        }

    def _memory(self) -> float:
        """Resident memory in MB; the last known value if no file descriptor is free to read it."""
        with contextlib.suppress(OSError):
            self._memory_mb = self._process.memory_info().rss / 2**20
        return self._memory_mb

    def _engine_fields(self, grown: dict[str, int]) -> dict[str, Any]:
        core = self._learner.core
        assert core is not None
        stats = core.engine.stats
        finished = [stats.finished.popleft() for _ in range(len(stats.finished))]
        returns = [episode[0] for episode in finished]
        watched = [stats.finished_evaluation.popleft()[0] for _ in range(len(stats.finished_evaluation))]
        percentiles = stats.latency.percentiles(50, 99)
        stats.latency.reset()
        return {
            "episode_return": _mean(returns),
            "episode_return_100": _mean(list(stats.recent_returns)),  # including those before a resume
            "episode_length": _mean([float(episode[1]) for episode in finished]),
            "evaluation_return": _mean(watched),
            "evaluation_return_20": _mean(list(stats.recent_evaluation_returns)),  # likewise
            "inference_batch_size": grown["batch_rows"] / grown["batches"] if grown["batches"] else None,
            "inference_latency_ms": (
                {"p50": 1000 * percentiles[0], "p99": 1000 * percentiles[1]} if percentiles is not None else None
            ),
        }

    def _training_fields(self, elapsed: float) -> dict[str, Any]:
        core = self._learner.core
        assert core is not None
        queue = self._learner.training.results
        results: list[UpdateResult] = [queue.popleft() for _ in range(len(queue))]
        if self._devices is None:
            self._devices = DeviceReport(core)
        fields: dict[str, Any] = {
            "devices": self._devices.sample(len(results), self._learner.training.profile.seconds(), elapsed),
            "weights_age": self._devices.weights_age,
        }
        applied = [result for result in results if result.applied]
        if applied:
            fields |= {
                "loss": applied[-1].loss,
                "grad_norm": applied[-1].grad_norm,
                "learning_rate": applied[-1].learning_rate,
                "policy_lag": _mean([result.policy_lag for result in applied]),
                "policy_lag_max": max(result.policy_lag_max for result in applied),
                "extra": {
                    name: float(np.mean([result.metrics[name] for result in applied])) for name in applied[-1].metrics
                },
            }
        return fields

    def finish(self, profiles: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
        """Write the last line of metrics, then the time profile and the summary.

        Args:
            profiles: those of the actors.

        Returns:
            The whole profile: thread or role → part → seconds.
        """
        if self._wall_clock:
            self.report()
        self._view.stop()
        learner = self._learner
        wall = time.monotonic() - self._begun
        shown: dict[str, dict[str, float]] = {}
        if learner.core is not None:
            inference = learner.service.profile.seconds()
            for name, seconds in learner.core.engine.profile.seconds().items():
                inference[name] = inference.get(name, 0.0) + seconds
            shown["inference thread"] = inference
            for name, profile in learner.core.source.profiles.items():
                shown[name] = profile.seconds()
            shown["training thread"] = learner.training.profile.seconds()
        shown |= profiles
        console = Console(stderr=True)
        if self._view.profile:
            print_profile(console, shown, wall)
        else:
            print_largest_parts(console, shown, wall)
        core = learner.core
        summary = Summary(
            env_steps=self._counters()["env_steps"],
            total=learner.config.run.steps,
            seconds=wall,
            episode_return_100=_mean(list(core.engine.stats.recent_returns)) if core is not None else None,
            dropped_unrolls=max(core.engine.stats.dropped_unrolls, core.source.dropped) if core is not None else 0,
            dropped_updates=core.trainer.dropped if core is not None else 0,
            folder=self._folder.path,
            how_to_resume=self._how_to_resume(),
            resumed_at=self._resumed_at,
            playable=bool(list_checkpoints(self._folder.checkpoints)),
            warning=self._warning(),
        )
        print_summary(console, summary)
        for line in summary_lines(summary):
            log_to_file(logging.INFO, line.plain)
        return shown

    def _how_to_resume(self) -> str:
        team = self._learner.team
        if team is None:
            return f"resume it with: {self._resumed_with} --resume --logdir {shlex.quote(str(self._folder.path))}"
        run = self._folder.path if team.chief else run_of_host(self._folder.path)
        return f"start all learner hosts again with --continue --logdir {run}"

    def close(self, status: int = EXIT_DONE, *, interrupted: bool = False) -> None:
        """Close the files, loggers and the view; safe to call twice.

        Args:
            status: exit status of the run, for the loggers.
            interrupted: by a signal, so that loggers get little time to store what is pending.
        """
        self._view.stop()
        self._writer.close()
        self._loggers.close(_INTERRUPTED_SECONDS if interrupted else _CLOSE_SECONDS, status)
