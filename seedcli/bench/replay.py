"""`seed bench replay`: memory, insertion and sampling rates of a replay with packed unrolls of real games.

Each figure has a baseline from the same run: memory the raw frames, packing and unpacking a plain copy of the same
bytes, a batch the training step that uses it, the sum tree a draw without one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from seedcli.agents.registry import create_agent
from seedcli.bench.transitions import measure_transitions
from seedcli.config.schema import Config
from seedcli.config.sections import EnvironmentConfig, ReplayConfig
from seedcli.config.sources import load_config
from seedcli.envs.placement import create_env_beside_tensorflow
from seedcli.specs import EnvSpec, RowLayout, aligned_empty
from seedcli.training.batches import TrainingBatch
from seedcli.training.replay.blocks import BlockCodec
from seedcli.training.replay.buffer import Replay
from seedcli.training.replay.sum_tree import SumTree
from seedcli.training.replay.unrolls import to_unrolls, unroll_fields
from seedcli.training.trainer import Trainer

_ENVS = 8  # of each game
_ROUNDS = 3  # repetitions of each measurement; the median counts
_TREE_ENTRIES = 1_000_000
_TREE_CALLS = 200


def _median_seconds(work: Callable[[], object], rounds: int = _ROUNDS) -> float:
    times = []
    for _ in range(rounds):
        begun = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun)
    return float(np.median(times))


def _play(config: EnvironmentConfig, records: int) -> tuple[EnvSpec, dict[str, npt.NDArray[Any]]]:
    """Records [records, E, ...] of a game under random actions."""
    env = create_env_beside_tensorflow(config, _ENVS)
    try:
        layout = RowLayout(env.spec, _ENVS)
        rows = aligned_empty(records * layout.nbytes).reshape(records, layout.nbytes)
        rng = np.random.default_rng(1)
        actions = env.spec.action.sample(rng, records, _ENVS)
        env.reset(1, layout.views(rows[0]))
        for t in range(1, records):
            env.step(actions[t - 1], layout.views(rows[t]))
        steps = layout.views(rows)
        played = {
            "observation": steps.observation,
            "reward": steps.reward,
            "terminated": steps.terminated,
            "truncated": steps.truncated,
            "action": actions,
        }
        return env.spec, played
    finally:
        env.close()


class _Game:
    """Unrolls of one game, as the learner would hand them to the replay.

    Noise replaces the outputs of a network (recurrent states, Q values); deliberately, it does not compress.
    """

    def __init__(self, config: Config, game: str, unrolls: int) -> None:
        environment = config.environment.model_copy(update={"id": game})
        length, burn_in = config.training.unroll_length, config.training.burn_in
        self.window = burn_in + length + 1
        rounds = -(-unrolls // _ENVS)
        # Frames of an episode's past are in the stack of the first unroll too.
        self.past = config.agent.network.frame_stack - 1
        self.records = self.past + self.window + (rounds - 1) * length
        self.spec, self._played = _play(environment, self.records)
        self.agent = create_agent(config.agent, config.training, self.spec, 1)
        self.fields = unroll_fields(self.agent, self.spec)
        self.starts = [self.past + i * length for i in range(rounds)]
        self._rng = np.random.default_rng(2)

    @property
    def unique_bytes(self) -> int:
        """Bytes of the raw frames the unrolls are made of, each once."""
        return (self.records - self.past) * _ENVS * self.spec.observation_bytes

    def arrays(self, start: int) -> dict[str, npt.NDArray[Any]]:
        """The unrolls [window, E, ...] that begin with record `start`."""
        arrays: dict[str, npt.NDArray[Any]] = {}
        for field in self.fields:
            if field.name in self._played:
                arrays[field.name] = self._played[field.name][start : start + self.window]
            elif field.per_record:
                shape = (field.shape[0], _ENVS, *field.shape[1:])
                version = field.dtype == "int64"
                arrays[field.name] = np.full(shape, start) if version else self._noise(shape, field.dtype)
            elif field.dtype == "uint8":
                frames = self._played["observation"][start - self.past : start]
                arrays[field.name] = np.ascontiguousarray(np.moveaxis(frames, 0, 1)).reshape(_ENVS, *field.shape)
            elif field.dtype == "int32":
                arrays[field.name] = self._played["action"][start - 1] + 1
            else:
                arrays[field.name] = self._noise((_ENVS, *field.shape), field.dtype)
        return arrays

    def _noise(self, shape: Sequence[int], dtype: str) -> npt.NDArray[Any]:
        return self._rng.standard_normal(shape).astype(dtype)


def _measure_game(config: Config, game: str, unrolls: int) -> tuple[dict[str, Any], _Game, Replay]:
    """Memory and rates of one game's unrolls, in bytes of whole unrolls a second of one core."""
    played = _Game(config, game, unrolls)
    codec = BlockCodec(played.fields)
    count = len(played.starts) * _ENVS
    section = ReplayConfig(capacity=count, min_size=1, ratio=1.0, window=1e12, storage="compressed")
    replay = Replay(codec, section, config.training.batch_size, 1)
    groups = [played.arrays(start) for start in played.starts]
    priorities = np.ones(_ENVS, np.float32)
    raw = count * codec.raw_bytes
    begun = time.process_time()
    for arrays in groups:
        replay.insert(replay.pack(arrays), priorities)
    inserting = time.process_time() - begun
    sink = np.empty(groups[0]["observation"].shape, np.uint8)

    def copy() -> None:
        for arrays in groups:
            np.copyto(sink, arrays["observation"])

    copying = _median_seconds(copy)
    sampled = replay.sample(wait=False)  # the first touches new memory
    begun = time.process_time()
    for _ in range(_ROUNDS):
        sampled = replay.sample(wait=False)
    sampling = (time.process_time() - begun) / _ROUNDS
    assert sampled is not None
    batch_bytes = config.training.batch_size * codec.raw_bytes
    figures = {
        "game": game,
        "unrolls": count,
        "unique_raw_mb": played.unique_bytes / 1e6,
        "replay_mb": replay.nbytes / 1e6,
        "memory_ratio": replay.nbytes / played.unique_bytes,
        "bytes_per_unroll": replay.nbytes / count,
        "insert_mb_per_second": raw / inserting / 1e6,
        "insert_unrolls_per_second": count / inserting,
        "decode_mb_per_second": batch_bytes / sampling / 1e6,
        "decode_unrolls_per_second": config.training.batch_size / sampling,
        "copy_mb_per_second": count * groups[0]["observation"].nbytes / _ENVS / copying / 1e6,
    }
    return figures, played, replay


def _measure_step(config: Config, played: _Game, replay: Replay) -> dict[str, Any]:
    """The time to sample and unpack a batch, against the training step that uses it."""
    trainer = Trainer(played.agent, config.training, 10**9)

    def prepared() -> TrainingBatch:
        sample = replay.sample(wait=False)
        assert sample is not None
        return to_unrolls(sample, played.agent, played.spec)

    batch = prepared()
    sampling = _median_seconds(prepared)
    trainer.update(batch, 0)  # traces
    training = _median_seconds(lambda: trainer.update(batch, 0), 2)
    return {
        "batch_size": config.training.batch_size,
        "records": played.window,
        "sample_seconds": sampling,
        "training_step_seconds": training,
        "ratio": sampling / training,
    }


def _measure_tree(batch_size: int) -> dict[str, Any]:
    rng = np.random.default_rng(3)
    tree = SumTree(_TREE_ENTRIES)
    values = rng.random(_TREE_ENTRIES)
    tree.set(np.arange(_TREE_ENTRIES), values)
    chosen = rng.integers(0, _TREE_ENTRIES, (_TREE_CALLS, batch_size))

    def bare() -> None:
        cumulative = np.cumsum(values)
        np.searchsorted(cumulative, rng.random(batch_size) * cumulative[-1])

    def sample() -> None:
        for _ in range(_TREE_CALLS):
            tree.sample(rng, batch_size)

    def update() -> None:
        for row in chosen:
            tree.set(row, values[row])

    return {
        "entries": _TREE_ENTRIES,
        "batch_size": batch_size,
        "sample_us": 1e6 * _median_seconds(sample) / _TREE_CALLS,
        "update_us": 1e6 * _median_seconds(update) / _TREE_CALLS,
        "bare_sample_us": 1e6 * _median_seconds(bare, 10),
    }


def measure_replay(games: Sequence[str], unrolls: int, preset: str, progress: Callable[[str], None]) -> dict[str, Any]:
    """Measure a replay of real frames.

    Args:
        games: Atari games, in snake_case.
        unrolls: of each, at least; rounded up to the environments played.
        preset: of the unrolls' lengths, the network and the batch.
        progress: called with a progress line.

    Returns:
        "games", one entry each; "sampling" against a training step; "tree"; "transitions" of small records.

    Raises:
        UsageError: there is no such game.
    """
    config = load_config(preset).config
    figures = []
    for game in games:
        progress(f"{game}: {unrolls} unrolls")
        found, played, replay = _measure_game(config, game, unrolls)
        figures.append(found)
    progress(f"one training step of {preset}, {config.training.batch_size} unrolls")
    step = _measure_step(config, played, replay)
    progress(f"sum tree of {_TREE_ENTRIES:,} entries")
    tree = _measure_tree(config.training.batch_size)
    progress("a million transitions of small records")
    return {"games": figures, "sampling": step, "tree": tree, "transitions": measure_transitions()}
