"""Training while its processes are killed, stopped and cut off, under a supervisor that restarts them.

The learner and its actors are restarted whenever they end, as by systemd. Every few seconds an actor is disturbed,
every few minutes the learner; at the end the run is finished undisturbed and the observations are reported.
"""

from __future__ import annotations

import contextlib
import functools
import heapq
import itertools
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import psutil

from seedcli.roles.run_folder import RunFolder
from tests.reliability import outcome
from tests.reliability.plan import Life, Plan, Slot
from tests.reliability.relay import Address, Network, Relay
from tests.reliability.verdict import LEDGER, WRONG
from tests.reliability.watch import Lines, sample
from tests.system.harness import Fleet, Process, checkpoints, wait_for

_TICK_SECONDS = 0.05
_SAMPLE_SECONDS = 1.0
_RESTART_SECONDS = 0.5  # before the supervisor restarts a process, like systemd's RestartSec
_STOP_SECONDS = 15.0  # what a learner may take after SIGTERM, checkpoint included
_FINISH_SECONDS = 300.0
_ACTOR_EVENTS = ("kill", "stop", "long stop", "stall", "long stall", "reset")
_CUTS = ("stall", "long stall", "reset")  # those that need a relay
_LEARNER_EVENTS = ("stop", "term", "long stop")  # between its kills


class Chaos:
    """A chaos run.

    Args:
        plan: of the run.
        fleet: of the processes.

    Attributes:
        events: how often each kind happened.
        lives: of the learner; the last one is undisturbed.
        statuses: exit statuses, of "learner" and "actor".
        failures: one sentence each.
        actor_memory: largest memory of an actor, MB.
        returns: (seconds since the beginning, mean return of the last 100 episodes).
    """

    def __init__(self, plan: Plan, fleet: Fleet) -> None:
        self.plan = plan
        self.fleet = fleet
        self.run_folder = fleet.folder / "run"
        self.ledger = fleet.folder / "ledger"
        self.events: Counter[str] = Counter()
        self.lives: list[Life] = []
        self.statuses: dict[str, Counter[int]] = {"learner": Counter(), "actor": Counter()}
        self.failures: list[str] = []
        self.actor_memory = 0.0
        self.returns: list[tuple[float, float]] = []
        self.written: list[Process] = []
        self.begun = time.monotonic()
        self.disturbed_seconds = 0.0
        self._random = random.Random(plan.seed)
        self._network = Network()
        self._lines = Lines(self.run_folder)
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._slots: list[Slot] = []
        self._learner_busy = False
        self._finishing = False
        self._next_sample = 0.0

    # -- the run ------------------------------------------------------------------------------------------------

    def run(self) -> dict[str, Any]:
        """Run; returns the report (`outcome.report`)."""
        try:
            self._start_learner(None)
            self._until(lambda: self.lives[-1].served is not None, 120.0, "the learner serves")
            self._slots = [self._slot(number) for number in range(self.plan.actors)]
            for slot in self._slots:
                self._start_actor(slot)
            self._until(lambda: self.lives[-1].stepped is not None, 120.0, "the first step of the run")
            self.begun = time.monotonic()
            self._disturb()
            self.disturbed_seconds = time.monotonic() - self.begun
            self._finish()
            orphans = self._orphans()
            return outcome.report(self, orphans)
        finally:
            self._network.close()

    def _disturb(self) -> None:
        every, learner_every = self.plan.every, self.plan.learner_every
        actor_kinds, learner_kinds = self._deck(_ACTOR_EVENTS), self._deck(_LEARNER_EVENTS)
        next_actor = time.monotonic() + every
        next_kill = time.monotonic() + learner_every
        next_other = time.monotonic() + learner_every / 2
        while time.monotonic() < self.begun + self.plan.seconds and not self.failures:
            now = time.monotonic()
            if now >= next_actor:
                next_actor += every
                self._disturb_an_actor(actor_kinds)
            if now >= next_kill and self._learner_is_training():
                next_kill = max(now, next_kill + learner_every)
                self._disturb_the_learner("kill")
            if now >= next_other and self._learner_is_training():
                next_other = max(now, next_other + learner_every)
                self._disturb_the_learner(next(learner_kinds))
            self._turn()

    def _turn(self) -> None:
        """Run due actions, handle processes that ended, take samples."""
        while self._due and self._due[0][0] <= time.monotonic():
            heapq.heappop(self._due)[2]()
        self._check_the_learner()
        for slot in self._slots:
            self._check_an_actor(slot)
        if time.monotonic() >= self._next_sample:
            self._next_sample = time.monotonic() + _SAMPLE_SECONDS
            self._take_samples()
        time.sleep(_TICK_SECONDS)

    def _until(self, condition: Callable[[], bool], limit: float, what: str) -> None:
        deadline = time.monotonic() + limit
        while not condition() and not self.failures:
            if time.monotonic() > deadline:
                self.failures.append(f"not within {limit:.0f} s: {what}")
            self._turn()

    def _after(self, seconds: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._due, (time.monotonic() + seconds, next(self._count), action))

    def _deck(self, kinds: tuple[str, ...]) -> Iterator[str]:
        """Repeat all kinds in random order, so that a short run has each of them."""
        while True:
            yield from self._random.sample(kinds, len(kinds))

    def _note(self, event: str) -> None:
        self.events[event] += 1
        print(f"{time.monotonic() - self.begun:7.1f} s  {event}", file=sys.stderr, flush=True)

    # -- the learner --------------------------------------------------------------------------------------------

    def _start_learner(self, down_since: float | None, steps: int | None = None) -> None:
        command = [*self.plan.learner(), "--steps", str(steps or 10**12)]
        module = "tests.reliability.recorded_learner" if self.plan.records else "seedcli"
        process = self.fleet.learner(*command, module=module)
        self.lives.append(Life(process, down_since))
        self.written.append(process)

    def _learner_is_training(self) -> bool:
        life = self.lives[-1]
        return life.stepped is not None and life.sent is None and not self._learner_busy

    def _check_the_learner(self) -> None:
        life = self.lives[-1]
        if life.served is None and len(life.process.addresses) == 2:
            life.served = time.monotonic()
        for line in self._lines.new():
            life.steps = line["env_steps"]
            if life.stepped is None:
                life.resumed_at = outcome.resumed_at(life.process)
                if life.steps > life.resumed_at:
                    life.stepped = time.monotonic()
            if line["episode_return_100"] is not None:
                self.returns.append((time.monotonic() - self.begun, line["episode_return_100"]))
        if life.process.running or self._learner_busy:
            return
        status = life.process.wait()
        self.statuses["learner"][status] += 1
        self._learner_busy = True  # until the next one is started
        if self._finishing and status == 0:
            return
        if status == WRONG:
            self.failures.append("a wrong record: see records")
        elif life.sent is None or status != (143 if life.sent == signal.SIGTERM else -life.sent):
            self.failures.append(f"the learner ended with {status}: {life.process.stderr[-2000:]}")
        if not self._finishing:
            self._after(_RESTART_SECONDS, self._start_the_next_learner)

    def _start_the_next_learner(self) -> None:
        life = self.lives[-1]
        # If it was killed before its first step, the learner was down already.
        self._start_learner(life.down_since if life.stepped is None else life.sent_at)
        self._learner_busy = False

    def _end_the_learner(self, number: signal.Signals) -> None:
        life = self.lives[-1]
        life.sent, life.sent_at = number, time.monotonic()
        life.process.send(number)

    def _disturb_the_learner(self, kind: str) -> None:
        self._note(f"learner {kind}")
        if kind == "kill":
            self._end_the_learner(signal.SIGKILL)
            if self._random.random() < 0.3:
                self._after(_RESTART_SECONDS + self._random.uniform(0.5, 6.0), self._kill_a_starting_learner)
        elif kind == "term":
            life = self.lives[-1]
            self._end_the_learner(signal.SIGTERM)
            self._after(_STOP_SECONDS, lambda: self._must_have_ended(life))
        else:
            process = self.lives[-1].process
            self._learner_busy = True
            process.send(signal.SIGSTOP)

            def resume() -> None:
                process.send(signal.SIGCONT)
                self._learner_busy = False

            self._after(self._duration(kind), resume)

    def _kill_a_starting_learner(self) -> None:
        life = self.lives[-1]
        if life.stepped is None and life.process.running and not self._finishing:
            self._note("learner kill while it starts")
            life.sent = signal.SIGKILL
            life.process.send(signal.SIGKILL)

    def _must_have_ended(self, life: Life) -> None:
        if life.process.running:
            self.failures.append(f"the learner still runs {_STOP_SECONDS:.0f} s after SIGTERM")

    def _duration(self, kind: str) -> float:
        timeout = self.plan.timeout
        return self._random.uniform(1.1, 1.6) * timeout if "long" in kind else self._random.uniform(0.2, 0.8) * timeout

    # -- actors -------------------------------------------------------------------------------------------------

    def _slot(self, number: int) -> Slot:
        transport = ("grpc", "zmq")[number % 2] if self.plan.transport == "both" else self.plan.transport

        def learner() -> Address | None:
            found = RunFolder.read_address(self.run_folder)
            return None if found is None else ("127.0.0.1", int(found[transport]))

        relay, folder = None, self.run_folder
        if number % 3 != 2:
            folder = self.fleet.folder / f"relay-{number}"
            relay = Relay(self._network, learner, folder, transport)
        command = ["--transport", transport, "--envs", str(self.plan.envs), "--reconnect-timeout", "300", "--json"]
        if number % 2 == 0:  # as with a scheduler that names its processes: a restarted actor replaces the session
            command += ["--actor-id", f"actor-{number}"]
        return Slot(number, relay, ["actor", "--connect", str(folder), *command])

    def _start_actor(self, slot: Slot) -> None:
        slot.process = self.fleet.start(*slot.command)
        slot.killed = slot.busy = False
        self.written.append(slot.process)

    def _check_an_actor(self, slot: Slot) -> None:
        process = slot.process
        if process is None or process.running:
            return
        status = process.wait()
        slot.process = None
        self.statuses["actor"][status] += 1
        if self._finishing and status == 0:
            return
        if not (slot.killed and status == -signal.SIGKILL):
            self.failures.append(f"actor {slot.number} ended with {status}: {process.stderr[-2000:]}")
        self._after(_RESTART_SECONDS, lambda: self._start_actor(slot))

    def _disturb_an_actor(self, kinds: Iterator[str]) -> None:
        kind = next(kinds)
        free = [slot for slot in self._slots if slot.process is not None and not slot.busy]
        if kind in _CUTS:
            free = [slot for slot in free if slot.relay is not None]
        if not free:
            self.events["skipped: every actor is being disturbed"] += 1
            return
        self._note(f"actor {kind}")
        slot = self._random.choice(free)
        process, relay = slot.process, slot.relay
        assert process is not None
        if kind == "kill":
            slot.killed = True
            process.send(signal.SIGKILL)
            return
        if kind == "reset":
            assert relay is not None
            relay.reset()
            return
        if kind in _CUTS:
            assert relay is not None
            begin, end = relay.stall, relay.flow
        else:
            begin, end = (functools.partial(process.send, number) for number in (signal.SIGSTOP, signal.SIGCONT))
        slot.busy = True
        begin()

        def resume() -> None:
            end()
            slot.busy = False

        self._after(self._duration(kind), resume)

    # -- samples and the end of the run -------------------------------------------------------------------------

    def _take_samples(self) -> None:
        life = self.lives[-1]
        if life.stepped is not None and (seen := sample(life.process.pid)) is not None:
            life.samples.append(seen)
        for slot in self._slots:
            if slot.process is not None and (seen := sample(slot.process.pid)) is not None:
                self.actor_memory = max(self.actor_memory, seen.memory)

    def _finish(self) -> None:
        """Stop the learner, resume the run and finish it."""
        self._until(
            lambda: self._learner_is_training() and not any(slot.busy for slot in self._slots),
            120.0,
            "nothing is disturbed",
        )
        if self.failures:
            return
        self._finishing = True
        life = self.lives[-1]
        self._end_the_learner(signal.SIGTERM)
        self._until(lambda: self._learner_busy, _STOP_SECONDS, "the learner's end after SIGTERM")
        if self.failures:
            return
        steps = checkpoints(self.run_folder)[-1] + self.plan.finish_steps
        self._start_learner(life.sent_at, steps)
        self._learner_busy = False
        self._until(lambda: self._learner_busy, _FINISH_SECONDS, "the end of the run")
        self._until(lambda: all(slot.process is None for slot in self._slots), 60.0, "actors end with the run")

    def _orphans(self) -> list[str]:
        """Processes whose parents have ended."""
        own = {process.pid for process in self.written if process.running}
        with contextlib.suppress(AssertionError):
            wait_for(lambda: not {p.pid for p in self.fleet.marked()} - self._families(own), "no orphan", limit=10)
        left = []
        for process in self.fleet.marked():
            with contextlib.suppress(psutil.Error):
                if process.pid not in self._families(own):
                    left.append(" ".join(process.cmdline())[:200])
        return left

    @staticmethod
    def _families(pids: set[int]) -> set[int]:
        found = set(pids)
        for pid in pids:
            with contextlib.suppress(psutil.Error):
                found |= {child.pid for child in psutil.Process(pid).children(recursive=True)}
        return found


def run_chaos(plan: Plan, fleet: Fleet) -> dict[str, Any]:
    """Run chaos in the folder of a fleet, with its own token; returns the report."""
    fleet.environ |= {"XDG_CONFIG_HOME": str(fleet.folder / "config"), LEDGER: str(fleet.folder / "ledger")}
    return Chaos(plan, fleet).run()
