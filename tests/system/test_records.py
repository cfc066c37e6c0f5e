"""Actors that join, leave, are killed and stall: every record is trained on once, and in its place."""

from __future__ import annotations

import copy
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seedcli.config.sources import load_config
from seedcli.errors import RefusedError
from seedcli.inference.arena import Arena, UnrollBuffer
from seedcli.inference.device_policy import DevicePolicy
from seedcli.roles.learner.threads import Learner
from seedcli.roles.run_folder import RunFolder
from seedcli.serving.listeners import open_transports
from seedcli.specs import ActionSpec, ArraySpec, EnvSpec
from seedcli.training import sources
from seedcli.training.batches import Piece, TrainingBatch, UnrollQueue
from tests.system.harness import COUNTER, LIMIT, TINY, Fleet, counting, wait_for
from tests.system.records import STEP, Book, marked

WITH_STATE = (
    "agent.network.previous_action_reward=true",
    "agent.network.frame_stack=2",
)  # so that a mix-up of states shows


class Training:
    """A learner in this process that records every unroll and batch."""

    def __init__(self, fleet: Fleet, folder: RunFolder, book: Book, *values: str) -> None:
        sets = (*TINY, *WITH_STATE, "net.grpc_port=0", "net.zmq_port=0", "net.insecure=true", "run.steps=1e9", *values)
        resolved = load_config(None, environ={}, sets=sets)
        self.book = book
        self._fleet = fleet
        transports = open_transports(resolved.config, None)
        self.addresses = {transport.name: transport.address for transport in transports}
        self.learner = Learner(resolved, folder, transports, None)
        self.learner.start()

    def wait(self, condition: Callable[[], Any], what: str) -> None:
        def checked() -> Any:
            if self.learner.failure is not None:
                raise self.learner.failure
            self._fleet.check()
            return condition()

        wait_for(checked, what)

    def wait_for_envs(self, envs: int) -> None:
        """Wait until `envs` environments are connected and each has finished another unroll."""
        self.wait(lambda: self.envs == envs, f"{envs} environments are connected")
        before = len(self.book.finished)
        # Streams do not take equal turns; this many columns include some of each.
        self.wait(lambda: len(self.book.finished) >= before + 10 * envs, "unrolls of all environments")
        trained = self.trained_steps
        self.wait(lambda: self.trained_steps > trained, "training continues")

    @property
    def envs(self) -> int:
        return sum(session.envs for session in self.learner.service.sessions())

    @property
    def trained_steps(self) -> int:
        return 0 if self.learner.core is None else self.learner.core.trainer.trained_steps


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fleet: Fleet) -> Iterator[Callable[..., Training]]:
    book = Book()
    put, assemble = UnrollQueue.put, sources.assemble

    def put_and_note(queue: UnrollQueue, buffer: UnrollBuffer) -> None:
        book.finish(buffer)  # before it can be trained on and released
        put(queue, buffer)

    def assemble_and_note(pieces: list[Piece], arena: Arena) -> TrainingBatch:
        batch = assemble(pieces, arena)
        book.train(batch.unrolls)
        return batch

    monkeypatch.setattr(UnrollQueue, "put", put_and_note)
    monkeypatch.setattr(sources, "assemble", assemble_and_note)
    monkeypatch.setattr(DevicePolicy, "begin", marked(DevicePolicy.begin))
    trainings = []

    def start(*values: str) -> Training:
        trainings.append(Training(fleet, folder, book, *values))
        return trainings[-1]

    with RunFolder.create(tmp_path / "run", "test") as folder:
        yield start
        for training in trainings:
            if not training.learner.service._stop.is_set():
                training.learner.stop(training_done=False)


def test_an_actor_is_killed_and_another_takes_its_place(train: Callable[..., Training], fleet: Fleet) -> None:
    # Room for 11 environments: the newcomer fits only if the slots of the killed actor are freed.
    training = train(*counting(), "inference.max_envs=11", "actors.envs=4")
    doomed = fleet.actor(training.addresses["zmq"], "--insecure", "--envs", "6", "--streams", "2")
    lasting = fleet.actor(training.addresses["grpc"], "--insecure", "--envs", "5", "--streams", "3")
    training.wait_for_envs(11)
    doomed.kill()
    training.wait_for_envs(5)
    newcomer = fleet.actor(training.addresses["grpc"], "--insecure", "--envs", "6", "--streams", "2")
    training.wait_for_envs(11)
    newcomer.kill()
    training.wait_for_envs(5)
    last = fleet.actor(training.addresses["zmq"], "--insecure", "--envs", "6", "--streams", "1")
    training.wait_for_envs(11)

    training.learner.stop(training_done=True)
    lasting.ends_with(0)
    last.ends_with(0)
    service = training.learner.service
    assert (service.sessions_opened, service.sessions_lost, service.protocol_errors) == (4, 2, 0)
    assert len(training.book.numbers()) == 6 + 5 + 6 + 6
    training.book.check()


def test_stalled_actor_starts_a_new_session(train: Callable[..., Training], fleet: Fleet) -> None:
    training = train(*counting(), "net.timeout_seconds=4", "net.heartbeat_seconds=0.2")
    actors = {name: fleet.actor(address, "--insecure", "--envs", "4") for name, address in training.addresses.items()}
    training.wait_for_envs(8)
    for actor in actors.values():
        actor.send(signal.SIGSTOP)
    training.wait(lambda: training.envs == 0, "both sessions are over")
    for actor in actors.values():
        actor.send(signal.SIGCONT)
    training.wait_for_envs(8)

    training.learner.stop(training_done=True)
    for actor in actors.values():
        actor.ends_with(0)
    assert training.learner.service.protocol_errors == 0
    assert len(training.book.numbers()) == 8, "an actor keeps its environments when it reconnects"
    training.book.check(restarts=8)


def test_actors_are_notified_of_the_end_of_training(train: Callable[..., Training], fleet: Fleet) -> None:
    """Whether they are stepping, sending or waiting."""
    training = train(*counting(pause=0.01))
    actors = [
        fleet.actor(address, "--insecure", "--envs", "2", "--reconnect-timeout", "30")
        for address in training.addresses.values()
        for _ in range(3)
    ]
    training.wait_for_envs(12)
    training.learner.stop(training_done=True)
    for actor in actors:
        actor.ends_with(0, limit=LIMIT)


def test_learner_without_actors_stops(train: Callable[..., Training]) -> None:
    training = train(*counting())
    training.learner.stop(training_done=True)
    training.learner.save()
    assert training.learner.core is None and training.learner.failure is None


def test_the_first_actor_with_another_environment_is_refused(train: Callable[..., Training]) -> None:
    training = train(*counting())
    spec = EnvSpec("gymnasium/Other-v0", ArraySpec((4,), "float32"), ActionSpec((4,)))
    with pytest.raises(RefusedError, match=f"'gymnasium/Other-v0', but the run plays gymnasium/{COUNTER}"):
        training.learner.engine_for(spec, lambda stream, sentence: None)
    assert training.learner.core is None


def _swap_rewards(book: Book) -> None:
    a, b = book.finished[0], book.finished[1]
    a.reward, b.reward = b.reward.copy(), a.reward.copy()
    a.reward[-1] += 1


def _lose_a_record(book: Book) -> None:
    column = book.finished[3]
    for name in ("observation", "reward", "terminated", "truncated", "action", "logits", "version"):
        values = getattr(column, name)
        setattr(column, name, np.concatenate([values[:2], values[3:]]))


def _lose_an_unroll(book: Book) -> None:
    number = book.finished[0].number
    own = [i for i, column in enumerate(book.finished) if column.number == number]
    del book.finished[own[1]]


def _repeat_an_unroll(book: Book) -> None:
    book.finished.append(copy.deepcopy(book.finished[0]))


def _shift_actions(book: Book) -> None:
    column = book.finished[2]
    column.action = np.roll(column.action, 1)


def _mix_states(book: Book) -> None:
    column = next(column for column in book.finished if column.observation[0, STEP] > 0)
    column.frames = column.frames + 1


def _train_twice(book: Book) -> None:
    book.trained.append(book.trained[0])


def _overwrite_before_training(book: Book) -> None:
    column = book.trained[-1]
    column.observation = column.observation.copy()
    column.observation[-1] = column.observation[0]


FAULTS = [
    _swap_rewards,
    _lose_a_record,
    _lose_an_unroll,
    _repeat_an_unroll,
    _shift_actions,
    _mix_states,
    _train_twice,
    _overwrite_before_training,
]


def test_the_check_detects_every_kind_of_wrong_record(train: Callable[..., Training], fleet: Fleet) -> None:
    training = train(*counting())
    actor = fleet.actor(training.addresses["zmq"], "--insecure", "--envs", "4")
    training.wait_for_envs(4)
    training.learner.stop(training_done=True)
    actor.ends_with(0)
    training.book.check()
    for fault in FAULTS:
        book = Book()
        book.finished, book.trained = (copy.deepcopy(x) for x in (training.book.finished, training.book.trained))
        fault(book)
        with pytest.raises(AssertionError):
            book.check()
            pytest.fail(f"{fault.__name__} went unnoticed", pytrace=False)
