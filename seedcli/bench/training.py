"""`seed bench training`: a real run against the rates of its parts when each has the machine to itself.

The parts are bare loops: the library's own vector environment under random actions, a traced function of the network,
and a traced function of loss, gradients and optimizer. Both are called the way a run calls its own (`agents.calls`): a
more expensive call would lower the composed rate and flatter the run. That rate, 1 / Σ 1/rate, is the most that a
learner and its actors can reach on the same cores.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import tensorflow as tf

from seedcli.agents.base import Agent, TargetsAgent, UnrollBatch, transitions_of
from seedcli.agents.calls import traced
from seedcli.agents.registry import create_agent
from seedcli.bench.bare_envs import Turn, environment_turn, library
from seedcli.bench.generated import environment_spec, random_observation, random_unrolls
from seedcli.config.schema import Config
from seedcli.config.sections import TrainingConfig
from seedcli.config.sources import Resolved, to_toml
from seedcli.errors import SeedError
from seedcli.results.metrics_file import read_lines
from seedcli.specs import EnvSpec, map_arrays
from seedcli.training.devices import columns_of
from seedcli.training.groups import group_losses, make_groups

_ENDLESS = 10**12  # environment steps of the run, which is stopped before it ends
_WARM_UP_SECONDS = 10.0  # of the run, after its first update
_START_SECONDS = 180.0  # to the run's first update
_STOP_SECONDS = 30.0
_CALLS_BEFORE = 3  # of a traced function, not measured


def _inference_turn(agent: Agent, spec: EnvSpec, batch_size: int) -> Turn:
    """Inference on a fixed batch."""
    observation = map_arrays(tf.constant, random_observation(spec, [batch_size]))
    reward, state = tf.zeros(batch_size), agent.initial_state(batch_size)

    def infer(observation: tf.Tensor, reward: tf.Tensor, state: Any) -> Any:
        outputs, _ = agent.network.step(observation, reward, state)
        return tf.nest.flatten(outputs)

    call = traced(infer)

    def turn() -> int:
        for output in call(observation, reward, state):
            output.numpy()
        return batch_size

    return turn


def _minibatches(agent: Agent, training: TrainingConfig, batch: UnrollBatch) -> list[UnrollBatch]:
    """A batch in `training.minibatches` parts, in its order."""
    size = training.columns_per_update
    if agent.algorithm.shuffles and training.minibatches > 1:
        order = np.arange(training.unroll_length * training.batch_size, dtype=np.int32)
        return [transitions_of(agent, batch, tf.constant(part)) for part in np.split(order, training.minibatches)]
    return [columns_of(batch, slice(start, start + size)) for start in range(0, training.batch_size, size)]


def _training_turn(agent: Agent, config: Config, spec: EnvSpec) -> Turn:
    """Losses, gradients, clipping and the optimizers' steps on the minibatches of a fixed batch."""
    training, columns = config.training, config.training.batch_size
    batch = random_unrolls(agent, spec, columns)
    if isinstance(agent, TargetsAgent):
        batch = batch._replace(targets=agent.targets(tf.nest.map_structure(tf.constant, batch)))
    minibatches = [tf.nest.map_structure(tf.constant, part) for part in _minibatches(agent, training, batch)]
    groups = make_groups(agent, training)

    def update(unrolls: UnrollBatch) -> tf.Tensor:
        with tf.GradientTape(persistent=len(groups) > 1) as tape:
            losses = group_losses(agent, groups, agent.loss(unrolls))
        for group, loss in zip(groups, losses, strict=True):
            gradients = tape.gradient(loss, group.variables)
            if training.clip_norm:
                gradients, _ = tf.clip_by_global_norm(gradients, training.clip_norm)
            group.optimizer.apply(gradients, group.variables)
        return tf.add_n(losses)

    call = traced(update)

    def turn() -> int:
        for _ in range(training.epochs):
            for unrolls in minibatches:
                call(unrolls).numpy()
        return agent.algorithm.batch_length * columns

    return turn


def _rate(turn: Turn, seconds: float) -> float:
    """Environment steps a second over `seconds`."""
    for _ in range(_CALLS_BEFORE):
        turn()
    steps, begun = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - begun) < seconds:
        steps += turn()
    return steps / elapsed


def _slope(lines: Sequence[dict[str, Any]], name: str) -> float:
    """Growth a second of a counter, fitted to all lines: it grows in jumps, which distort the slope of two lines."""
    times = np.array([line["time"] for line in lines])
    return float(np.polyfit(times - times[0], [line[name] for line in lines], 1)[0])


def _wait_for(path: Path, run: subprocess.Popen[bytes], log: Path, limit: float, enough: Callable[[Any], Any]) -> Any:
    """Wait until `enough(metrics)` is true and return its value.

    Raises:
        SeedError: the run ended, or `limit` seconds were not enough.
    """
    deadline = time.monotonic() + limit
    while True:
        if path.exists() and (found := enough(read_lines(path))):
            return found
        status = run.poll()
        if status is not None or time.monotonic() > deadline:
            tail = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
            what = f"ended with status {status}" if status is not None else f"has not trained within {limit:.0f} s"
            raise SeedError(f"the training run {what}: {tail[-1] if tail else 'no output'}")
        time.sleep(0.2)


@contextmanager
def _exit_on_sigterm() -> Iterator[None]:
    """Leave through the `finally` clauses on SIGTERM, so that the run does not outlive its measurement."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    previous = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _end_to_end(resolved: Resolved, seconds: float) -> dict[str, Any]:
    """Train in separate processes, as a user would, for `seconds` after the warm-up."""
    with _exit_on_sigterm(), tempfile.TemporaryDirectory(prefix="seed-bench-") as name:
        folder = Path(name)
        values, log, metrics = folder / "config.toml", folder / "log", folder / "run" / "metrics.jsonl"
        values.write_text(to_toml(resolved), encoding="utf-8")
        command = [sys.executable, "-m", "seedcli", "train", "--config", str(values), "--no-live"]
        command += ["--logdir", str(folder / "run"), "--steps", str(_ENDLESS)]
        with log.open("wb") as output:
            run = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        try:
            first = _wait_for(
                metrics, run, log, _START_SECONDS, lambda lines: [line for line in lines if line["trained_steps"]]
            )[0]
            begin = first["time"] + _WARM_UP_SECONDS

            def window(lines: list[dict[str, Any]]) -> list[dict[str, Any]] | None:
                inside = [line for line in lines if line["time"] >= begin]
                return inside if len(inside) > 2 and inside[-1]["time"] - inside[0]["time"] >= seconds else None

            limit = _WARM_UP_SECONDS + seconds + _START_SECONDS
            lines = _wait_for(metrics, run, log, limit, window)
        finally:
            run.terminate()
            try:
                run.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                run.kill()
                run.wait()
    lags = [line["policy_lag"] for line in lines if line["policy_lag"] is not None]
    batches = [line["inference_batch_size"] for line in lines if line["inference_batch_size"] is not None]
    return {
        "trained_steps_per_second": _slope(lines, "trained_steps"),
        "env_steps_per_second": _slope(lines, "env_steps"),
        "seconds": lines[-1]["time"] - lines[0]["time"],
        "policy_lag": float(np.mean(lags)) if lags else None,
        "inference_batch_size": float(np.mean(batches)) if batches else None,
    }


def measure_training(resolved: Resolved, seconds: float, progress: Callable[[str], None]) -> dict[str, Any]:
    """Measure the bare parts, the run, and the bare parts again, because a machine's speed drifts.

    Args:
        resolved: what to train.
        seconds: length of the run's window; each bare part gets half of it before and half of it after.
        progress: called with a progress line.

    Returns:
        The parts' rates (means of both halves), the composed limit of steps trained on, the run's rates, how often a
        step is trained on, and the ratio of the steps it trained on to the limit.

    Raises:
        SeedError: the run ended, or did not begin to train.
    """
    config, cores = resolved.config, len(os.sched_getaffinity(0))
    spec = environment_spec(config.environment)
    agent = create_agent(config.agent, config.training, spec, config.run.seed)
    total = config.actors.count * config.actors.envs
    batch_size = config.inference.batch_size or (total + 1) // 2
    rates: dict[str, list[float]] = {"environment": [], "inference": [], "training": []}

    def bare() -> None:
        progress("bare environment, inference and training")
        with environment_turn(config, cores) as turn:
            rates["environment"].append(_rate(turn, seconds / 2))
        rates["inference"].append(_rate(inference, seconds / 2))
        rates["training"].append(_rate(training, seconds / 2))

    inference, training = _inference_turn(agent, spec, batch_size), _training_turn(agent, config, spec)
    bare()
    progress("seed train")
    run = _end_to_end(resolved, seconds)
    bare()
    what = {
        "environment": f"{library(config.environment)}, {total} environments in {min(2, total)} groups, random actions",
        "inference": f"the traced network, batches of {batch_size}",
        "training": f"a traced update, {agent.algorithm.batch_length} x {config.training.batch_size} steps",
    }
    parts = {
        name: {"steps_per_second": float(np.mean(values)), "halves": values, "what": what[name]}
        for name, values in rates.items()
    }
    # A replay trains on each step several times, so each training bears only a share of stepping and acting.
    trainings = config.replay.ratio if agent.algorithm.source == "replay" else 1.0
    environment, inferring, updating = (float(np.mean(values)) for values in rates.values())
    composed = 1.0 / ((1.0 / environment + 1.0 / inferring) / trainings + 1.0 / updating)
    return {
        **parts,
        "trainings_of_a_step": trainings,
        "composed_steps_per_second": composed,
        "end_to_end": run,
        "ratio": run["trained_steps_per_second"] / composed,
    }
