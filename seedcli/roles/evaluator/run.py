"""`seed eval`: play a trained agent from a checkpoint."""

from __future__ import annotations

import fcntl
import json
import os
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

from seedcli.config.schema import Config
from seedcli.config.sections import EnvironmentConfig
from seedcli.config.sources import from_toml_file
from seedcli.envs.base import VectorEnv
from seedcli.envs.checks import check_finite
from seedcli.envs.placement import create_env_beside_tensorflow
from seedcli.envs.registry import family_of
from seedcli.errors import EXIT_DONE, CheckpointError
from seedcli.inference.device_memory import building
from seedcli.roles.evaluator.video import VideoWriter
from seedcli.roles.greedy_hint import greedy_hint
from seedcli.roles.run_folder import LOCK
from seedcli.roles.trained_agent import TrainedAgent
from seedcli.specs import RowLayout, aligned_empty
from seedcli.training.checkpoint_files import (
    Checkpoint,
    check_environment,
    find_checkpoint,
    list_checkpoints,
    open_checkpoint,
)

_WATCH_SECONDS = 1.0


@dataclass(frozen=True)
class Evaluation:
    """The result of playing a checkpoint.

    Attributes:
        checkpoint: its folder.
        env_steps: environment steps it was trained for.
        returns: raw return of each episode, in the order of environments and episodes.
        lengths: environment steps of each episode.
        actions: "greedy" or "sampled".
        hint: one-line advice if greedy play falls clearly short of training; "" for none.
        matches: episodes are matches, and returns are goal differences.
    """

    checkpoint: str
    env_steps: int
    returns: list[float]
    lengths: list[int]
    actions: str = "greedy"
    hint: str = ""
    matches: bool = False

    def rates(self) -> dict[str, float]:
        """Shares of matches won, drawn and lost; empty if episodes are not matches."""
        if not self.matches:
            return {}
        signs = np.sign(self.returns)
        return {f"{name}_rate": float(np.mean(signs == sign)) for name, sign in (("win", 1), ("draw", 0), ("loss", -1))}

    def to_dict(self) -> dict[str, Any]:
        """The JSON form, for `--json`."""
        return {
            "checkpoint": self.checkpoint,
            "env_steps": self.env_steps,
            "actions": self.actions,
            "episodes": len(self.returns),
            "return_mean": float(np.mean(self.returns)),
            "return_std": float(np.std(self.returns)),
            "returns": self.returns,
            "length_mean": float(np.mean(self.lengths)),
            **self.rates(),
        }


class Player:
    """Plays the agent of a checkpoint.

    Args:
        checkpoint: the agent and its configuration.
        sample: sample actions as in training instead of taking the greedy one.
        seed: of action sampling.
        envs: environments played at once.
        environment: played instead of the training environment; its specification must match.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        sample: bool,
        seed: int,
        envs: int,
        environment: EnvironmentConfig | None = None,
    ) -> None:
        config = from_toml_file(checkpoint.config_path)
        self._elsewhere = environment is not None
        self._noticed = False
        self._sample = sample
        environment = environment or config.environment
        sees_rewards = config.agent.network.previous_action_reward
        environment, self._matches = family_of(environment).counts_wins(environment, sees_rewards)
        # Returns compare with training only in the same environment.
        self._as_trained = environment == config.environment
        self.config: Config = config.model_copy(update={"environment": environment})
        self._checkpoint = checkpoint
        with building("while building the evaluator", "lower --envs, or stop other programs that use the device"):
            self._agent = TrainedAgent(checkpoint, self.config, seed=seed)
            self._policy = self._agent.make_policy(envs, greedy=not sample)

    def load(self, checkpoint: Checkpoint) -> None:
        """Load another checkpoint of the same run."""
        self._agent.load(checkpoint)
        self._policy.publish(checkpoint.counters["learner_updates"])
        self._checkpoint = checkpoint

    def build(self, envs: int, *, render: bool = False, again: bool = False) -> VectorEnv:
        """Build the environments.

        Args:
            envs: how many.
            render: the first one renders pictures.
            again: environments are built repeatedly in this process.

        Raises:
            CheckpointError: their specification differs from the agent's.
        """
        environment = self.config.environment
        env = create_env_beside_tensorflow(environment, envs, render=render, again=again)
        notice = getattr(env, "notice", "")
        if notice and not self._noticed:
            print(f"seed: {notice}", file=sys.stderr)
            self._noticed = True
        spec = replace(self._checkpoint.spec, name=env.spec.name) if self._elsewhere else self._checkpoint.spec
        try:
            check_environment(self._checkpoint, spec, env.spec)
        except CheckpointError:
            env.close()
            raise
        return env

    def play(self, env: VectorEnv, episodes: int, seed: int, video: VideoWriter | None = None) -> Evaluation:
        """Play `episodes` episodes, assigned to the environments beforehand.

        Counting the first to end would favour short episodes.
        """
        envs = env.num_envs
        layout = RowLayout(env.spec, envs)
        out = layout.views(aligned_empty(layout.nbytes))
        slots = np.arange(envs, dtype=np.int32)
        quota = np.array([episodes // envs + (i < episodes % envs) for i in range(envs)])
        played: list[list[tuple[float, int]]] = [[] for _ in range(envs)]
        finished = np.zeros(envs, np.int64)
        total: npt.NDArray[np.float64] = np.zeros(envs)
        length = np.zeros(envs, np.int64)
        first = np.ones(envs, np.bool_)
        env.reset(seed, out)
        while True:
            if video is not None:
                video.add(env.render())
            check_finite(out.reward, "reward", env.spec.name)
            total = np.where(first, 0.0, total) + out.reward
            length = np.where(first, 0, length + 1)
            ended = (out.terminated | out.truncated) != 0
            for i in np.flatnonzero(ended & (finished < quota)):
                played[i].append((float(total[i]), int(length[i])))
                finished[i] += 1
            if (finished >= quota).all():
                break
            decision = self._policy.devices[0].act(out.observation, out.reward, first, slots)
            first = ended
            env.step(decision.action, out)
        flat = [episode for one in played for episode in one]
        returns = [episode[0] for episode in flat]
        comparable = self._as_trained and self._agent.algorithm.samples_actions and not self._sample
        return Evaluation(
            checkpoint=str(self._checkpoint.path),
            env_steps=self._checkpoint.env_steps,
            returns=returns,
            lengths=[episode[1] for episode in flat],
            actions="sampled" if self._sample else "greedy",
            hint=greedy_hint(self._checkpoint.counters, returns) if comparable else "",
            matches=self._matches,
        )


def _print(evaluation: Evaluation, config: Config) -> None:
    console = Console()
    table = Table(title=f"{config.environment.family}/{config.environment.id}, {evaluation.actions} actions")
    returns = np.array(evaluation.returns)
    columns = {"env steps": f"{evaluation.env_steps:,}", "episodes": f"{len(returns)}"}
    if evaluation.matches:
        columns |= {"score mean": f"{returns.mean():.2f}", "std": f"{returns.std():.2f}"}
        columns |= {name.removesuffix("_rate"): f"{100 * rate:.0f} %" for name, rate in evaluation.rates().items()}
    else:
        columns |= {"return mean": f"{returns.mean():.2f}", "std": f"{returns.std():.2f}"}
        columns |= {"min": f"{returns.min():g}", "max": f"{returns.max():g}"}
    columns["length mean"] = f"{np.mean(evaluation.lengths):,.1f}"
    for name in columns:
        table.add_column(name, justify="right")
    table.add_row(*columns.values())
    console.print(table)
    console.print(f"checkpoint {evaluation.checkpoint}", soft_wrap=True)


def _report(evaluation: Evaluation, config: Config, *, json_output: bool, hint: bool = True) -> None:
    if json_output:
        print(json.dumps(evaluation.to_dict()), flush=True)
    else:
        _print(evaluation, config)
    if hint and evaluation.hint:
        print(f"seed: {evaluation.hint}", file=sys.stderr, flush=True)


def _film(player: Player, path: Path, seed: int) -> None:
    with VideoWriter(path, player.config.environment) as video:
        env = player.build(1, render=True)
        try:
            evaluation = player.play(env, 1, seed, video)
        finally:
            env.close()
    print(f"{path}: one episode, return {evaluation.returns[0]:g}, {evaluation.lengths[0]:,} steps", file=sys.stderr)


def run_eval(
    path: Path,
    *,
    episodes: int,
    sample: bool,
    seed: int,
    json_output: bool,
    video: Path | None,
    watch: bool,
    envs: int,
) -> int:
    """Play a checkpoint, or with `watch` each new checkpoint of a running training, once `check_request` has passed.

    Args:
        path: a run folder (its newest good checkpoint) or a checkpoint folder.
        episodes: episodes played.
        sample: sample actions instead of taking the greedy one.
        seed: of environments and sampling.
        json_output: print one JSON object per checkpoint on stdout instead of a table.
        video: an MP4 file for one more episode.
        watch: follow the run until its learner ends.
        envs: environments played at once; at most `episodes` are used.

    Returns:
        The exit status.
    """
    envs = min(envs, episodes)
    if watch:
        _watch(path, episodes=episodes, sample=sample, seed=seed, json_output=json_output, envs=envs)
        return EXIT_DONE
    player = Player(find_checkpoint(path), sample=sample, seed=seed, envs=envs)
    env = player.build(envs)
    try:
        _report(player.play(env, episodes, seed), player.config, json_output=json_output)
    finally:
        env.close()
    if video is not None:
        _film(player, video, seed)
    return EXIT_DONE


def _running(run: Path) -> bool:
    """Whether a learner holds the run folder."""
    try:
        descriptor = os.open(run / LOCK, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _watch(run: Path, *, episodes: int, sample: bool, seed: int, json_output: bool, envs: int) -> None:
    player: Player | None = None
    seen, announced, hinted = -1, False, False
    while True:
        # Checked before listing, so that a checkpoint written as the learner ends is not missed.
        running = _running(run)
        found = [p for p in list_checkpoints(run / "checkpoints") if int(p.name) > seen]
        for path in found:
            try:
                checkpoint = open_checkpoint(path)
            except CheckpointError as error:
                print(f"seed: {error}", file=sys.stderr)
                continue
            finally:
                seen = int(path.name)
            if player is None:
                player = Player(checkpoint, sample=sample, seed=seed, envs=envs)
            else:
                player.load(checkpoint)
            env = player.build(envs, again=True)
            try:
                evaluation = player.play(env, episodes, seed)
                _report(evaluation, player.config, json_output=json_output, hint=not hinted)
                hinted = hinted or bool(evaluation.hint)
            finally:
                env.close()
        if not running and not found:
            return
        if not found:
            if seen < 0 and not announced:
                print(f"seed: waiting for the first checkpoint of {run}", file=sys.stderr, flush=True)
                announced = True
            time.sleep(_WATCH_SECONDS)
