"""Several learner hosts as one: each takes its share of the work, and all agree with every update.

What is agreed travels in the vector that every training step begins with adding up over hosts:

    [hosts without a batch, then for each host: 1 if it has none, for each host: its exit status if it is to stop, 0
     else, for each name of `COUNTERS`: what the host has counted since it started]

Every host reads the same sums, so all of them apply an update or none does, and all stop after the same one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from seedcli.cluster.hosts import Placement
from seedcli.cluster.meeting import Meeting, MeetingCancelled
from seedcli.config.schema import Config
from seedcli.errors import SeedError
from seedcli.serving.service import InferenceService

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.05
_REPORT_SECONDS = 0.5
_WHY_SECONDS = 12.0  # longer than the silence after which a host counts as lost
_TELL_SECONDS = 10.0  # without a batch at a host, after which that is said
_GO = "go"
COUNTERS = ("env_steps", "episodes", "evaluation_steps", "evaluation_episodes", "trained_steps")


@dataclass(frozen=True)
class Agreement:
    """What all hosts know after an update.

    Attributes:
        missing: numbers of the hosts that had no batch; where there are any, nothing was applied.
        stopping: host → exit status, of those that are to stop; where there are any, all do.
    """

    missing: tuple[int, ...]
    stopping: Mapping[int, int]


class Team:
    """One host's view of all of them; `control` and `agree` belong to the training thread.

    Args:
        meeting: where the hosts have met.
        names: "host:port" of each, the chief's first.
        index: which of them this is.
        patience: seconds that the others wait for a host without a batch.
        stopped: whether this host has been asked to stop.

    Attributes:
        parted: all hosts have agreed that this was the last step.
        began: counters of the checkpoint that the run is gone on with from; empty for a new one.
        totals: `COUNTERS` of all hosts since the run began, as of the last update.
    """

    def __init__(
        self,
        meeting: Meeting,
        names: tuple[str, ...],
        index: int,
        patience: float,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self.meeting = meeting
        self.names = names
        self.index = index
        self._patience = patience
        self._stopped = stopped
        self.parted = False
        self.began: dict[str, int] = {}
        self._base = dict.fromkeys(COUNTERS, 0)
        self.totals = dict(self._base)
        self._short_since: float | None = None
        self._short_told = False
        self._service: InferenceService | None = None
        self._next_report = 0.0

    @property
    def size(self) -> int:
        """Number of hosts."""
        return len(self.names)

    @property
    def chief(self) -> bool:
        """Whether this host writes checkpoints and keeps the run's folder."""
        return self.index == 0

    def serve(self, service: InferenceService) -> None:
        """Have actors that come to `service` spread over all hosts."""
        self._service = service
        service.reception.place = Placement(
            self.index,
            [introduction.actors for introduction in self.meeting.introductions],
            own=service.reception.envs,
            loads=lambda: self.meeting.loads,
        )

    def look(self) -> None:
        """Tell the others now and then how many environments there are here; for the main thread.

        Raises:
            SeedError: a host is gone.
        """
        if self.meeting.lost:
            raise SeedError(f"{self.meeting.lost}: start all hosts again with --continue")
        now = time.monotonic()
        if self._service is not None and now >= self._next_report:
            self._next_report = now + _REPORT_SECONDS
            self.meeting.report(self._service.reception.envs())

    def why_gone(self) -> str:
        """Which host TensorFlow cannot reach any more, if the meeting finds out soon; else ""."""
        deadline = time.monotonic() + _WHY_SECONDS
        while not self.meeting.lost and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
        return self.meeting.lost

    def resume(self, counters: Mapping[str, int]) -> None:
        """Count on from a checkpoint's counters; none of them for a new run."""
        self.began = {name: count for name, count in counters.items() if isinstance(count, int)}
        self._base = {name: int(counters.get(name, 0)) for name in COUNTERS}
        self.totals = dict(self._base)

    def wait_for_all(self) -> None:
        """Wait until every host has come as far as this, and knows it.

        What follows may keep Python from running until the others do the same: nobody may learn too late that it is
        their turn. So the members say that they are there, and the chief says when all are.

        Raises:
            SeedError: a host is gone, or does not come.
            MeetingCancelled: this host was asked to stop.
        """
        self.meeting.report(1)
        self._flush()
        if not self.chief:
            self.wait_told(_GO)
            return
        self._wait(self._all_there, "not every host is there")
        self.meeting.tell({**self.meeting.told, _GO: True})
        self._flush()

    def _all_there(self) -> bool:
        loads = self.meeting.loads
        return len(loads) == self.size and all(loads.values())

    def _flush(self) -> None:
        if not self.meeting.flush(self._patience):
            raise SeedError(self.meeting.lost or "the other learner hosts cannot be reached")

    def wait_told(self, name: str) -> Any:
        """Something that the chief tells the others, once it has told it. Raises as `wait_for_all` does."""
        self._wait(lambda: name in self.meeting.told, f"{self.named((0,))} has not said where the run stands")
        return self.meeting.told[name]

    def _wait(self, condition: Callable[[], bool], otherwise: str) -> None:
        deadline = time.monotonic() + self._patience
        while not condition():
            if self._stopped():
                raise MeetingCancelled
            if self.meeting.lost or time.monotonic() > deadline:
                raise SeedError(self.meeting.lost or otherwise)
            time.sleep(_LOOK_SECONDS)

    def control(self, counted: Mapping[str, int], *, ready: bool, status: int) -> npt.NDArray[np.float64]:
        """What this host adds to the sum: float64 [1 + 2·hosts + counters].

        Args:
            counted: `COUNTERS` of this host since it started, the batch at hand included.
            ready: it has a batch.
            status: its exit status if it is to stop, else 0.
        """
        missing, stopping = np.zeros((2, self.size))
        missing[self.index], stopping[self.index] = not ready, status
        return np.concatenate([[missing.sum()], missing, stopping, [counted[name] for name in COUNTERS]])

    def agree(self, control: npt.NDArray[np.float64]) -> Agreement:
        """Read the sum.

        Raises:
            SeedError: a host has been without a batch for longer than the others wait.
        """
        missing, stopping = control[1 : 1 + self.size], control[1 + self.size : 1 + 2 * self.size]
        counted = control[1 + 2 * self.size :]
        short = tuple(np.flatnonzero(missing).tolist())
        now = {name: self._base[name] + int(count) for name, count in zip(COUNTERS, counted, strict=True)}
        # Every host has counted the batch at hand; where one had none, nothing was trained on.
        self.totals = now | ({"trained_steps": self.totals["trained_steps"]} if short else {})
        self._check_patience(short)
        return Agreement(short, {int(host): int(stopping[host]) for host in np.flatnonzero(stopping)})

    def _check_patience(self, short: tuple[int, ...]) -> None:
        now = time.monotonic()
        if not short or len(short) == self.size:  # nobody waits for anybody
            self._short_since, self._short_told = None, False
            return
        if self._short_since is None:
            self._short_since = now
        waited = now - self._short_since
        if waited > _TELL_SECONDS and not self._short_told:
            self._short_told = True
            _log.warning(
                "%s has had no training batch for %.0f s, and the others wait: give it actors; all stop after %g s "
                "(topology.host_timeout)",
                self.named(short), waited, self._patience,
            )  # fmt: skip
        if waited > self._patience:
            raise SeedError(
                f"{self.named(short)} had no training batch for {waited:.0f} s (topology.host_timeout = "
                f"{self._patience:g}) while the others had one: give it actors, or raise that"
            )

    def named(self, hosts: tuple[int, ...]) -> str:
        """Hosts by number and address, for sentences."""
        return " and ".join(f"host {host} ({self.names[host]})" for host in hosts)


def local_share(config: Config, index: int, hosts: int) -> Config:
    """The configuration of one host's own parts: its share of batch, replay and fleet, and a seed of its own.

    What an agent is built from, and what is written down, is the whole configuration.
    """
    if hosts == 1:
        return config
    training, replay, actors = config.training, config.replay, config.actors
    narrowest = (training.batch_size / hosts + replay.ratio) / 2  # see `conflicts`
    evaluation = actors.evaluation_envs // hosts + (index < actors.evaluation_envs % hosts)
    return config.model_copy(
        update={
            "run": config.run.model_copy(update={"seed": (config.run.seed + 7919 * index) % 2**31}),
            "training": training.model_copy(update={"batch_size": training.batch_size // hosts}),
            "replay": replay.model_copy(
                update={
                    "capacity": -(-replay.capacity // hosts),
                    "min_size": -(-replay.min_size // hosts),
                    # As narrow as a host's part of the batch still allows (`conflicts`).
                    "window": replay.window and max(replay.window / hosts, narrowest),
                }
            ),
            "actors": actors.model_copy(update={"evaluation_envs": evaluation}),
        }
    )
