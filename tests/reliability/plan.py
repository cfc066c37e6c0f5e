"""What a chaos run is to do, and the processes it does it to."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field

from tests.reliability.relay import Relay
from tests.reliability.watch import Sample
from tests.system.harness import TINY, Learner, Process, counting, sets

# What distinguishes one record from another: there is a state to mix up.
REMEMBERING = ("agent.network.previous_action_reward=true", "agent.network.frame_stack=2")


@dataclass(frozen=True)
class Plan:
    """What a chaos run does.

    Attributes:
        seconds: that harm is done for.
        actors: processes.
        envs: of each.
        every: seconds between events at actors.
        learner_every: seconds between kills of the learner; half-way between them something else happens to it.
        transport: "grpc", "zmq" or "both".
        records: play `Counter` and check every record, instead of CartPole.
        timeout: net.timeout_seconds; "long" events outlast it.
        checkpoint_seconds: between checkpoints.
        finish_steps: environment steps taken undisturbed in the end.
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
        values += ["telemetry.interval_seconds=0.5", "telemetry.tensorboard=false"]
        if self.records:
            values = [*TINY, *REMEMBERING, *counting(pause=0.001), *values]
        values.append(f"net.heartbeat_seconds={min(2.0, self.timeout / 5):g}")
        command = ["--preset", "cartpole_vtrace", "--logdir", "run", "--continue", "--no-live"]
        return [*command, *sets(*values, *self.values)]


@dataclass
class Life:
    """One learner process. Times are monotonic seconds; None: not yet, or never.

    Attributes:
        process: of the learner.
        down_since: when the one before it was killed or told to stop.
        served: when it printed its addresses.
        resumed_at: environment steps of the checkpoint it went on from.
        stepped: when the first line with more steps was seen.
        steps: the newest count of environment steps.
        samples: of the process.
        sent: the last signal sent to it that ends a process, at `sent_at`.
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
    """An actor, whichever process it is at the moment, and the relay it reaches the learner through.

    One in three has no relay: it finds the learner in the run's folder, at new ports each time.
    """

    number: int
    relay: Relay | None
    command: list[str]
    process: Process | None = None
    killed: bool = False
    busy: bool = False
