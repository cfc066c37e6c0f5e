"""A learner's core with a replay: restoring checkpoints, non-finite rewards."""

from __future__ import annotations

import io
import math
import time
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from seedcli.agents.r2d2 import R2D2Agent
from seedcli.config.sources import to_toml
from seedcli.roles.learner.core import LearnerCore
from seedcli.roles.learner.reporting import Reporter
from seedcli.roles.run_folder import RunFolder
from seedcli.telemetry.live import PlainView
from seedcli.telemetry.metrics import GENERAL_METRICS, Profile
from seedcli.training.checkpoint import open_checkpoint
from seedcli.training.sources import ReplaySource
from tests.inference.helpers import take_answers, take_unblocked
from tests.training.helpers import LIMIT, SPEC, resolved


def _core(folder: Path, *values: str) -> LearnerCore:
    settings = resolved("replay.save=true", *values)
    return LearnerCore(
        settings.config,
        to_toml(settings),
        folder / "checkpoints",
        SPEC,
        on_release=lambda: None,
        on_fault=lambda stream, sentence: pytest.fail(sentence),
        deadline=0.0,
    )


def _play_and_train(core: LearnerCore, updates: int, seed: int, bad: float = 0.0) -> None:
    """Step a training and an evaluation stream until `updates` updates; rewards `bad` are NaN."""
    rng = np.random.default_rng(seed)
    streams = [core.engine.open_stream(None, 0, 3), core.engine.open_stream(None, 1, 1, "evaluation")]
    wanted = core.trainer.updates + updates
    deadline = time.monotonic() + LIMIT
    while core.trainer.updates < wanted:
        assert time.monotonic() < deadline
        for stream in streams:
            assert stream is not None
            if not stream.pending:
                row = stream.buffer.layout.views(np.frombuffer(core.engine.destination(stream), np.uint8))
                row.observation[:] = rng.normal(size=row.observation.shape)
                row.reward[:] = rng.normal(size=row.reward.shape)
                if bad:
                    row.reward[rng.random(len(row.reward)) < bad] = np.nan
                row.terminated[:] = rng.random(len(row.terminated)) < 0.1
                row.truncated[:] = 0
                core.engine.arrived(stream)
        if core.engine.wait() == 0.0:
            take_answers(core.engine)
        batch = core.source.next_batch(wait=False)
        if batch is not None:
            assert core.train(batch).applied
        take_unblocked(core.engine)
    for stream in streams:
        core.engine.close_stream(stream)


def test_the_update_is_traced_once_while_the_core_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    traced: list[Any] = []
    loss = R2D2Agent.loss
    monkeypatch.setattr(R2D2Agent, "loss", lambda agent, unrolls: traced.append(unrolls) or loss(agent, unrolls))
    core = _core(tmp_path)
    assert len(traced) == 1 and core.trainer.updates == 0
    _play_and_train(core, updates=2, seed=1)
    assert len(traced) == 1


def _assert_same_replay(one: ReplaySource, other: ReplaySource) -> None:
    a, b = one.replay.snapshot(), other.replay.snapshot()
    assert list(a.rows.blocks(a.oldest)) == list(b.rows.blocks(b.oldest))
    assert a._replace(priorities=None, places=0, rows=None) == b._replace(priorities=None, places=0, rows=None)
    np.testing.assert_array_equal(a.priorities, b.priorities)
    assert one.stats() == other.stats()


def test_a_learner_is_restored_from_its_checkpoint(tmp_path: Path) -> None:
    core = _core(tmp_path)
    _play_and_train(core, 30, seed=1)
    counters = core.counters() | {"seeds_given": 0}
    path = core.checkpointer.save(counters, wait=True)
    resumed = _core(tmp_path)
    resumed.resume(open_checkpoint(path))
    assert isinstance(core.source, ReplaySource) and isinstance(resumed.source, ReplaySource)
    assert resumed.counters() == core.counters() and counters["evaluation_steps"] > 0
    recent = resumed.engine.stats.recent_evaluation_returns
    assert recent == core.engine.stats.recent_evaluation_returns and len(recent) > 0
    del counters["recent_evaluation_returns"]
    _core(tmp_path, "replay.save=false").resume(open_checkpoint(core.checkpointer.save(counters, wait=True)))
    _assert_same_replay(core.source, resumed.source)
    for mine, theirs in zip(core.agent.variables().values(), resumed.agent.variables().values(), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    # Both continue bit-identically: draws, losses and new priorities.
    for each in (core, resumed):
        _play_and_train(each, 10, seed=2)
    _assert_same_replay(core.source, resumed.source)
    for mine, theirs in zip(core.trainer.variables().values(), resumed.trainer.variables().values(), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    for each in (core, resumed):
        each.source.close()


def test_a_checkpoint_keeps_the_loss_scale(tmp_path: Path) -> None:
    core, resumed = _core(tmp_path, "replay.save=false"), _core(tmp_path, "replay.save=false")
    core.trainer.loss_scale, core.trainer.good_updates = 2.0**13, 7
    path = core.checkpointer.save(core.counters(), wait=True)
    resumed.resume(open_checkpoint(path))
    assert resumed.trainer.loss_scale is None, "as with another precision"
    resumed.trainer.loss_scale = 2.0**15
    resumed.resume(open_checkpoint(path))
    assert (resumed.trainer.loss_scale, resumed.trainer.good_updates) == (2.0**13, 7)
    for each in (core, resumed):
        each.source.close()


def test_resuming_without_a_saved_replay_refills_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    core = _core(tmp_path, "replay.save=false")
    _play_and_train(core, 5, seed=1)
    path = core.checkpointer.save(core.counters(), wait=True)
    for save in ("true", "false"):
        resumed = _core(tmp_path, f"replay.save={save}")
        resumed.resume(open_checkpoint(path))
        assert isinstance(resumed.source, ReplaySource)
        assert (resumed.source.replay.inserted, resumed.trainer.updates) == (0, 5)
        why = "contains no replay" if save == "true" else "the saved replay is ignored (replay.save = false)"
        assert f"{why}: it refills to replay.min_size = 8 unrolls" in caplog.text
        caplog.clear()
        _play_and_train(resumed, 3, seed=3)
        resumed.source.close()


def test_an_unreadable_replay_is_ignored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    core = _core(tmp_path)
    _play_and_train(core, 5, seed=1)
    path = core.checkpointer.save(core.counters() | {"seeds_given": 0}, wait=True)
    core.source.close()
    (segment,) = (tmp_path / "replay").glob("*.seg")
    segment.unlink()
    resumed = _core(tmp_path)
    resumed.resume(open_checkpoint(path))
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert f"{segment} cannot be read (No such file or directory), so the replay is ignored: it refills to" in line
    assert isinstance(resumed.source, ReplaySource)
    assert (resumed.source.replay.inserted, resumed.trainer.updates) == (0, 5)
    for mine, theirs in zip(core.agent.variables().values(), resumed.agent.variables().values(), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    _play_and_train(resumed, 3, seed=3)
    again = resumed.checkpointer.save(resumed.counters() | {"seeds_given": 0}, wait=True)
    third = _core(tmp_path)
    third.resume(open_checkpoint(again))
    assert isinstance(third.source, ReplaySource)
    _assert_same_replay(resumed.source, third.source)
    for each in (resumed, third):
        each.source.close()


def test_non_finite_rewards_are_counted_once_and_not_trained_on(tmp_path: Path) -> None:
    core = _core(tmp_path, "replay.save=false")
    _play_and_train(core, 30, seed=1, bad=0.05)
    while core.source.next_batch(wait=False) is not None:
        pass  # insert what is still waiting
    dropped = core.engine.stats.dropped_unrolls
    assert dropped > 10 and core.source.dropped == dropped and core.trainer.dropped == 0
    assert all(np.isfinite(variable.numpy()).all() for variable in core.agent.variables().values())
    names = ("protocol_errors", "environment_failures", "sessions_lost", "row_bytes_received", "row_bytes_raw")
    handshakes = SimpleNamespace(in_progress=dict)
    service = SimpleNamespace(
        sessions=list, handshakes=handshakes, lost_sessions=deque(), turned_away=0, **dict.fromkeys(names, 0)
    )
    learner: Any = SimpleNamespace(
        config=core.config,
        core=core,
        team=None,
        service=service,
        training=SimpleNamespace(results=deque(), profile=Profile()),
    )
    with RunFolder.create(tmp_path / "run", "test") as folder:
        reporter = Reporter(learner, folder, PlainView(Console(file=io.StringIO())), resumed_at=None)
        line = reporter.report().to_dict()
        reporter.close()
    assert line["dropped_unrolls"] == dropped
    assert line["replay_size"] == core.source.stats()["replay_size"] > 8
    assert core.source_stats().keys() <= GENERAL_METRICS, "names that no algorithm's own metric may have"
    assert line["evaluation_episodes"] == core.engine.stats.evaluation_episodes > 0
    assert line["evaluation_return_20"] is not None and math.isfinite(line["episode_return_100"])
    core.source.close()
