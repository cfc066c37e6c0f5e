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
from types import TracebackType

import numpy as np
import numpy.typing as npt

from seedcli.cluster.hosts import Placement
from seedcli.cluster.messages import Run, State, describe_host
from seedcli.cluster.rendezvous import Rendezvous
from seedcli.config.schema import Config
from seedcli.errors import SeedError
from seedcli.serving.service import InferenceService
from seedcli.training.checkpoint_files import Checkpoint

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.05
_WHY_SECONDS = 12.0  # longer than the silence after which a host counts as lost
_WARN_SECONDS = 10.0  # without a batch at a host
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

    A context manager: at its end the host leaves the rendezvous, and says why where the others cannot know.

    Args:
        rendezvous: that all hosts have joined.
        patience: seconds that the others wait for a host without a batch.

    Attributes:
        finished: all hosts have agreed that nothing is left to do: this was the last step, or there is none.
        checkpoint: the chief's: where the run is resumed; None: it is new, or this is another host.
        began: counters of the checkpoint with which the run is resumed; empty for a new one.
        totals: `COUNTERS` of all hosts since the run began, as of the last update.
    """

    def __init__(self, rendezvous: Rendezvous, patience: float) -> None:
        self.rendezvous = rendezvous
        self.index = rendezvous.index
        self._patience = patience
        self.finished = False
        self.checkpoint: Checkpoint | None = None
        self.began: dict[str, int] = {}
        self._base = dict.fromkeys(COUNTERS, 0)
        self.totals = dict(self._base)
        self._short_since: float | None = None
        self._short_warned = False
        self._service: InferenceService | None = None

    def __enter__(self) -> Team:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is not None:
            self.rendezvous.close(str(error) or type(error).__name__)
        else:
            self.rendezvous.close("" if self.finished else "it was stopped before training had begun")

    @property
    def size(self) -> int:
        """Number of hosts."""
        return len(self.rendezvous.hosts)

    @property
    def chief(self) -> bool:
        """Whether this host writes checkpoints and keeps the run's folder."""
        return self.index == 0

    def share_run(self, run: Run | None) -> Run:
        """Have every host know where the run stands.

        Args:
            run: what the chief knows; None at other hosts.

        Raises:
            SeedError: a host is lost, or the chief says nothing.
            RendezvousCancelled: this host was asked to stop.
        """
        if run is not None:
            self.rendezvous.update(run=run)
        known = self._wait(lambda state: state.run is not None, f"{self.named((0,))} has not said where the run stands")
        assert known.run is not None
        counters = known.run.counters
        self.began = {name: count for name, count in counters.items() if isinstance(count, int)}
        self._base = {name: int(counters.get(name, 0)) for name in COUNTERS}
        self.totals = dict(self._base)
        return known.run

    def wait_for_all(self) -> None:
        """Wait until every host has come as far as this, and knows it; raises as `share_run` does.

        What follows may keep Python from running until the others do the same: no host may learn too late that it is
        its turn.
        """
        self.rendezvous.update(ready=True)
        self._wait(lambda state: state.ready, "not every host is there")

    def _wait(self, condition: Callable[[State], bool], otherwise: str) -> State:
        return self.rendezvous.wait(condition, self._patience, lambda: SeedError(otherwise))

    def serve(self, service: InferenceService) -> None:
        """Have actors that come to `service` spread over all hosts."""
        self._service = service
        service.reception.place = Placement(
            self.index,
            [addresses.actors for addresses in self.rendezvous.state.hosts],
            own=service.reception.envs,
            loads=lambda: self.rendezvous.state.loads,
        )

    def look(self) -> None:
        """Have the others know how many environments there are here; for the main thread.

        Raises:
            SeedError: a host is lost.
        """
        if self.rendezvous.failure:
            raise SeedError(f"{self.rendezvous.failure}: start all hosts again with --continue")
        if self._service is not None:
            self.rendezvous.update(envs=self._service.reception.envs())

    def why_lost(self) -> str:
        """Which host TensorFlow cannot reach any more, if the rendezvous finds out soon; else ""."""
        deadline = time.monotonic() + _WHY_SECONDS
        while not self.rendezvous.failure and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
        return self.rendezvous.failure

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
        if not short or len(short) == self.size:  # no host waits for another
            self._short_since, self._short_warned = None, False
            return
        if self._short_since is None:
            self._short_since = now
        waited = now - self._short_since
        if waited > _WARN_SECONDS and not self._short_warned:
            self._short_warned = True
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
        return " and ".join(describe_host(self.rendezvous.hosts, host) for host in hosts)


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
