"""The plan of a chaos run, and its processes."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field

from tests.reliability.relay import Relay
from tests.reliability.watch import Sample
from tests.system.harness import TINY, Learner, Process, counting, sets

# Settings that give records a state, so that a mix-up of states shows.
WITH_STATE = ("agent.network.previous_action_reward=true", "agent.network.frame_stack=2")


@dataclass(frozen=True)
class Plan:
    """The plan of a chaos run.

    Attributes:
        seconds: length of the disturbed part.
        actors: number of processes.
        envs: of each actor.
        every: seconds between events of actors.
        learner_every: seconds between kills of the learner; another event happens half-way between them.
        transport: "grpc", "zmq" or "both".
        records: play `Counter` and check every record, instead of CartPole.
        timeout: net.timeout_seconds; "long" events outlast it.
        checkpoint_seconds: seconds between checkpoints.
        finish_steps: environment steps of the undisturbed end.
        seed: of the events.
        values: `--set` for the learner.
    """

    seconds: float
    actors: int = 3
    envs: int = 8
    every: float = 5.0
    learner_every: float = 180.0
    transport: str = "both"
    records: bool = False
    timeout: float = 20.0
    checkpoint_seconds: float = 30.0
    finish_steps: int = 200_000
    seed: int = 1
    values: tuple[str, ...] = ()

    def learner(self) -> list[str]:
        """Arguments of `seed learner`."""
        values = [f"net.timeout_seconds={self.timeout:g}", f"training.checkpoint_seconds={self.checkpoint_seconds:g}"]
        values += ["telemetry.interval_seconds=0.5", "telemetry.loggers=[]"]
        if self.records:
            values = [*TINY, *WITH_STATE, *counting(pause=0.001), *values]
        values.append(f"net.heartbeat_seconds={min(2.0, self.timeout / 5):g}")
        command = ["--preset", "cartpole_vtrace", "--logdir", "run", "--continue", "--no-live"]
        return [*command, *sets(*values, *self.values)]


@dataclass
class Life:
    """One learner process. Times are monotonic seconds; None: it has not happened.

    Attributes:
        process: of the learner.
        down_since: when the process before it was killed or signalled to stop.
        served: when it printed its addresses.
        resumed_at: environment steps of the checkpoint that it resumed from.
        stepped: when the first line of metrics with more steps was seen.
        steps: the newest count of environment steps.
        samples: of the process.
        sent: the last terminating signal sent to it, at `sent_at`.
    """

    process: Learner
    down_since: float | None = None
    served: float | None = None
    resumed_at: int = 0
    stepped: float | None = None
    steps: int = 0
    samples: list[Sample] = field(default_factory=list)
    sent: signal.Signals | None = None
    sent_at: float = 0.0


@dataclass
class Slot:
    """An actor, its current process, and the relay between it and the learner.

    One in three has no relay and finds the learner in the run's folder, at new ports each time.
    """

    number: int
    relay: Relay | None
    command: list[str]
    process: Process | None = None
    killed: bool = False
    busy: bool = False
