"""Several learner hosts as one: each does its share of the work, and all agree at every update.

At the beginning of every training step, the hosts sum a control vector:

    [number of hosts without a batch; for each host: 1 if it has no batch; for each host: its exit status if it must
     stop, else 0; for each name of `COUNTERS`: the host's count since it started]

Every host reads the same sums, so either all or none apply an update, and all stop after the same one.
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

_POLL_SECONDS = 0.05
_DIAGNOSIS_SECONDS = 12.0  # longer than the rendezvous takes to detect a lost host
_WARN_SECONDS = 10.0  # without a batch at a host
COUNTERS = ("env_steps", "episodes", "evaluation_steps", "evaluation_episodes", "trained_steps")


@dataclass(frozen=True)
class Agreement:
    """The hosts' agreement at an update.

    Attributes:
        missing: hosts without a batch; if there are any, no host applied the update.
        stopping: host → exit status of the hosts that must stop; if there are any, all hosts stop.
    """

    missing: tuple[int, ...]
    stopping: Mapping[int, int]


class Team:
    """One host's view of all hosts; call `control` and `agree` from the training thread.

    A context manager: on exit the host leaves the rendezvous, with the reason if the others do not know it.

    Args:
        rendezvous: the rendezvous, which all hosts have joined.
        host_timeout: seconds that the others wait for a host without a batch.

    Attributes:
        finished: all hosts have agreed that no step is left.
        checkpoint: on the chief, the checkpoint from which the run is resumed; None: a new run, or another host.
        start_counters: counters of that checkpoint; empty for a new run.
        totals: `COUNTERS` of all hosts since the run began, as of the last update.
    """

    def __init__(self, rendezvous: Rendezvous, host_timeout: float) -> None:
        self.rendezvous = rendezvous
        self.index = rendezvous.index
        self._host_timeout = host_timeout
        self.finished = False
        self.checkpoint: Checkpoint | None = None
        self.start_counters: dict[str, int] = {}
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
            self.rendezvous.close("" if self.finished else "it was stopped before training began")

    @property
    def size(self) -> int:
        """Number of hosts."""
        return len(self.rendezvous.hosts)

    @property
    def chief(self) -> bool:
        """Whether this host writes checkpoints and keeps the run's folder."""
        return self.index == 0

    def share_run(self, run: Run | None) -> Run:
        """Share the state of the run with every host; returns it.

        Args:
            run: the chief's state of the run; None on other hosts.

        Raises:
            SeedError: a host is lost, or the chief does not send the state.
            RendezvousCancelled: this host was asked to stop.
        """
        if run is not None:
            self.rendezvous.update(run=run)
        known = self._wait(lambda state: state.run is not None, f"{self.named((0,))} has not sent the state of the run")
        assert known.run is not None
        counters = known.run.counters
        self.start_counters = {name: count for name, count in counters.items() if isinstance(count, int)}
        self._base = {name: int(counters.get(name, 0)) for name in COUNTERS}
        self.totals = dict(self._base)
        return known.run

    def wait_for_all(self) -> None:
        """Wait until every host has called this and knows that all have; raises the errors of `share_run`.

        The next operation may block Python until the other hosts take part, so every host must know first.
        """
        self.rendezvous.update(ready=True)
        self._wait(lambda state: state.ready, "not every host is ready")

    def _wait(self, condition: Callable[[State], bool], otherwise: str) -> State:
        return self.rendezvous.wait(condition, self._host_timeout, lambda: SeedError(otherwise))

    def serve(self, service: InferenceService) -> None:
        """Distribute the actors that connect to `service` over all hosts."""
        self._service = service
        service.handshakes.place = Placement(
            self.index,
            [addresses.actors for addresses in self.rendezvous.state.hosts],
            own=service.handshakes.envs,
            loads=lambda: self.rendezvous.state.loads,
        )

    def report_envs(self) -> None:
        """Report this host's number of environments to the others; call it from the main thread.

        Raises:
            SeedError: a host is lost.
        """
        if self.rendezvous.failure:
            raise SeedError(f"{self.rendezvous.failure}: start all hosts again with --continue")
        if self._service is not None:
            self.rendezvous.update(envs=self._service.handshakes.envs())

    def find_lost_host(self) -> str:
        """Wait for the rendezvous to name the host that TensorFlow cannot reach; returns the sentence, or ""."""
        deadline = time.monotonic() + _DIAGNOSIS_SECONDS
        while not self.rendezvous.failure and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        return self.rendezvous.failure

    def control(self, counted: Mapping[str, int], *, ready: bool, status: int) -> npt.NDArray[np.float64]:
        """Return this host's control vector: float64 [1 + 2·hosts + counters].

        Args:
            counted: `COUNTERS` of this host since it started, including the current batch.
            ready: the host has a batch.
            status: its exit status if it must stop, else 0.
        """
        missing, stopping = np.zeros((2, self.size))
        missing[self.index], stopping[self.index] = not ready, status
        return np.concatenate([[missing.sum()], missing, stopping, [counted[name] for name in COUNTERS]])

    def agree(self, control: npt.NDArray[np.float64]) -> Agreement:
        """Read the sum of the control vectors.

        Raises:
            SeedError: a host has had no batch for longer than the others wait.
        """
        missing, stopping = control[1 : 1 + self.size], control[1 + self.size : 1 + 2 * self.size]
        counted = control[1 + 2 * self.size :]
        short = tuple(np.flatnonzero(missing).tolist())
        now = {name: self._base[name] + int(count) for name, count in zip(COUNTERS, counted, strict=True)}
        # The hosts have counted the current batch; if one had none, nothing was trained.
        self.totals = now | ({"trained_steps": self.totals["trained_steps"]} if short else {})
        self._check_host_timeout(short)
        return Agreement(short, {int(host): int(stopping[host]) for host in np.flatnonzero(stopping)})

    def _check_host_timeout(self, short: tuple[int, ...]) -> None:
        now = time.monotonic()
        if not short or len(short) == self.size:  # no host waits for others
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
                self.named(short), waited, self._host_timeout,
            )  # fmt: skip
        if waited > self._host_timeout:
            raise SeedError(
                f"{self.named(short)} had no training batch for {waited:.0f} s (topology.host_timeout = "
                f"{self._host_timeout:g}) while the others had one: give it actors, or raise the timeout"
            )

    def named(self, hosts: tuple[int, ...]) -> str:
        """Return hosts by number and address, for messages."""
        return " and ".join(describe_host(self.rendezvous.hosts, host) for host in hosts)


def local_share(config: Config, index: int, hosts: int) -> Config:
    """Return the configuration of one host: its share of batch, replay and fleet, and its own seed.

    Agents are built from the complete configuration, which is also the one that is saved.
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
                    # Not narrower than a host's part of the batch requires (`conflicts`).
                    "window": replay.window and max(replay.window / hosts, narrowest),
                }
            ),
            "actors": actors.model_copy(update={"evaluation_envs": evaluation}),
        }
    )
