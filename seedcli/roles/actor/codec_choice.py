"""Chooses the codec of each observation array by playing a few steps and measuring, in the actor."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from seedcli.envs.base import VectorEnv
from seedcli.net.codecs import RAW, ArrayCodec, fitting_codecs
from seedcli.specs import ArraySpec, RowLayout, aligned_empty

_log = logging.getLogger(__name__)

WORTH_BYTES = 4096  # below this size of a stream's observations nothing is encoded: the message overhead dominates
COST_SHARE = 0.1  # of the environments' step time that encoding may take
SAVING = 0.1  # least share of the bytes that a codec must save
_LEAST_STEPS = 4
_MOST_STEPS = 32
_SECONDS = 0.5  # longest time for sampling, once `_LEAST_STEPS` are done
_KEPT = 8  # rows on which codecs are measured


@dataclass(frozen=True)
class Sample:
    """Rows recorded from play.

    Attributes:
        layout: the rows' layout.
        rows: uint8 [row bytes] each, evenly spaced over the steps played.
        step_seconds: mean time of a step of all the stream's environments.
    """

    layout: RowLayout
    rows: Sequence[npt.NDArray[np.uint8]]
    step_seconds: float

    def parts(self, index: int, array: ArraySpec) -> list[npt.NDArray[np.uint8]]:
        """The bytes of the `index`-th array in every row."""
        start = self.layout.offsets[index]
        return [row[start : start + array.nbytes * self.layout.num_envs] for row in self.rows]


def play(
    env: VectorEnv,
    seed: int,
    *,
    least: int = _LEAST_STEPS,
    most: int = _MOST_STEPS,
    skip: int = 0,
) -> Sample:
    """Reset an environment and play it with random actions; this leaves it in the middle of episodes.

    Args:
        env: a stream's environments.
        seed: of the environments and the actions.
        least: fewest steps to play.
        most: most steps to play.
        skip: steps at the beginning that are not recorded.
    """
    layout = RowLayout(env.spec, env.num_envs)
    rng = np.random.default_rng(seed)
    row = aligned_empty(layout.nbytes)
    views = layout.views(row)
    env.reset(seed, views)
    rows: list[npt.NDArray[np.uint8]] = []
    for _ in range(skip):
        env.step(env.spec.action.sample(rng, env.num_envs), views)
    spent = 0.0
    while len(rows) < least or (len(rows) < most and spent < _SECONDS):
        actions = env.spec.action.sample(rng, env.num_envs)
        begun = time.perf_counter()
        env.step(actions, views)
        spent += time.perf_counter() - begun
        rows.append(row.copy())
    return Sample(layout, rows[:: -(-len(rows) // _KEPT)], spent / len(rows))


def _seconds(function: Callable[[Any], Any], arguments: Sequence[Any], repeat: int) -> float:
    """Seconds per call, averaged over the arguments; the minimum of `repeat` rounds."""
    times = []
    for _ in range(repeat):
        begun = time.perf_counter()
        for argument in arguments:
            function(argument)
        times.append(time.perf_counter() - begun)
    return min(times) / len(arguments)


@dataclass(frozen=True)
class Cost:
    """Size and time of a codec on an array of E environments; means over the sample.

    Attributes:
        codec: its name.
        nbytes: size of a block.
        encode_seconds: on one core, for a block.
        decode_seconds: the same for decoding; 0 if not measured.
    """

    codec: str
    nbytes: float
    encode_seconds: float
    decode_seconds: float


def measure_codec(
    codec: str, array: ArraySpec, num_envs: int, parts: Sequence[npt.NDArray[np.uint8]], *, decode: bool = False
) -> Cost:
    """Measure a codec on an array's bytes in several rows.

    Raises:
        EnvironmentFailed: a two-valued array holds a third value.
    """
    tried = ArrayCodec(codec, array, num_envs)
    blocks = [bytes(tried.encode(part)) for part in parts]
    encode = _seconds(tried.encode, parts, 3)
    decoding = 0.0
    if decode:
        out = aligned_empty(tried.raw_bytes)

        def decode_into(block: memoryview) -> None:
            tried.decode(block, out)

        decoding = _seconds(decode_into, [memoryview(block) for block in blocks], 5)
    return Cost(codec, sum(map(len, blocks)) / len(blocks), encode, decoding)


def best(costs: Sequence[Cost], raw_bytes: int, budget: float) -> Cost:
    """The smallest codec that encodes within `budget` seconds and saves enough; plain bytes if there is none."""
    raw = next(cost for cost in costs if cost.codec == RAW)
    good = [cost for cost in costs if cost.encode_seconds <= budget and cost.nbytes <= (1 - SAVING) * raw_bytes]
    return min(good, key=lambda cost: cost.nbytes, default=raw)


def choose_codecs(env: VectorEnv, seed: int, offered: Sequence[str]) -> dict[str, str]:
    """Choose the codec of each array: the smallest that encodes within the array's share of a tenth of the step time.

    Args:
        env: a stream's environments; played with random actions, so the caller must reset them afterwards.
        seed: of the environments and the actions.
        offered: codecs that the learner accepts.

    Returns:
        Codec by array name.

    Raises:
        EnvironmentFailed: the environment failed.
    """
    spec = env.spec
    codecs = dict.fromkeys(spec.arrays, RAW)
    total = spec.observation_bytes * env.num_envs
    if total < WORTH_BYTES:
        return codecs
    sample = play(env, seed)
    nbytes = cost = 0.0
    for index, (name, array) in enumerate(spec.arrays.items()):
        parts = sample.parts(index, array)
        names = [codec for codec in fitting_codecs(array) if codec in offered or codec == RAW]
        costs = [measure_codec(codec, array, env.num_envs, parts) for codec in names]
        raw_bytes = array.nbytes * env.num_envs
        chosen = best(costs, raw_bytes, COST_SHARE * sample.step_seconds * raw_bytes / total)
        codecs[name] = chosen.codec
        nbytes += chosen.nbytes
        cost += chosen.encode_seconds if chosen.codec != RAW else 0.0
    _log.info(
        "observations are sent as %s: 1/%.1f of %s bytes a step; encoding takes %.1f %% of the environments' step time",
        ", ".join(f"{name} {codec}" for name, codec in codecs.items()),
        total / nbytes,
        f"{total:,}",
        100 * cost / sample.step_seconds,
    )
    return codecs
