"""`seed eval`: play a trained agent from a checkpoint."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from seedcli.config.schema import Config
from seedcli.config.sections import EnvironmentConfig
from seedcli.config.sources import from_toml_file
from seedcli.envs.base import VectorEnv
from seedcli.envs.placement import create_env_beside_tensorflow
from seedcli.envs.registry import family_of
from seedcli.errors import EXIT_DONE, CheckpointError
from seedcli.inference.device_memory import building
from seedcli.roles.evaluator.episodes import play
from seedcli.roles.evaluator.logged import log_evaluation
from seedcli.roles.evaluator.report import Evaluation, film, report
from seedcli.roles.evaluator.stored import keep_evaluation
from seedcli.roles.evaluator.video import VideoWriter
from seedcli.roles.greedy_hint import greedy_hint
from seedcli.roles.run_lock import is_running
from seedcli.roles.trained_agent import TrainedAgent
from seedcli.specs import Rows
from seedcli.training.checkpoint_files import (
    Checkpoint,
    check_environment,
    find_checkpoint,
    list_checkpoints,
    open_checkpoint,
)

_WATCH_SECONDS = 1.0


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
        # Returns are comparable with training only in the same environment.
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
        env = create_env_beside_tensorflow(self.config.environment, envs, render=render, again=again)
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
        """Play `episodes` episodes; see `episodes.play`."""
        slots = np.arange(env.num_envs, dtype=np.int32)

        def act(out: Rows, first: npt.NDArray[np.bool_]) -> npt.NDArray[Any]:
            return self._policy.devices[0].act(out.observation, out.reward, first, slots).action

        returns, lengths = play(env, act, episodes, seed, video)
        comparable = self._as_trained and self._agent.algorithm.samples_actions and not self._sample
        return Evaluation(
            checkpoint=str(self._checkpoint.path),
            env_steps=self._checkpoint.env_steps,
            returns=returns,
            lengths=lengths,
            actions="sampled" if self._sample else "greedy",
            hint=greedy_hint(self._checkpoint.counters, returns) if comparable else "",
            matches=self._matches,
        )


def _keep_and_report(evaluation: Evaluation, environment: EnvironmentConfig, **how: bool) -> None:
    keep_evaluation(Path(evaluation.checkpoint), evaluation.to_dict())
    report(evaluation, environment, **how)


def _film(player: Player, path: Path, seed: int) -> None:
    film(lambda: player.build(1, render=True), player.play, path, player.config.environment, seed)


def run_eval(
    path: Path,
    *,
    episodes: int,
    sample: bool,
    seed: int,
    json_output: bool,
    video: Path | None,
    watch: bool,
    log: bool,
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
        log: also send the result and the video to the run's loggers.
        envs: environments played at once; at most `episodes` are used.

    Returns:
        The exit status.
    """
    envs = min(envs, episodes)
    if watch:
        _watch(path, episodes=episodes, sample=sample, seed=seed, json_output=json_output, envs=envs)
        return EXIT_DONE
    checkpoint = find_checkpoint(path)
    player = Player(checkpoint, sample=sample, seed=seed, envs=envs)
    env = player.build(envs)
    try:
        evaluation = player.play(env, episodes, seed)
        _keep_and_report(evaluation, player.config.environment, json_output=json_output)
    finally:
        env.close()
    if video is not None:
        _film(player, video, seed)
    if log:
        log_evaluation(checkpoint, evaluation.to_dict(), video)
    return EXIT_DONE


def _watch(run: Path, *, episodes: int, sample: bool, seed: int, json_output: bool, envs: int) -> None:
    player: Player | None = None
    seen, announced, hinted = -1, False, False
    while True:
        # Checked before listing, so that a checkpoint written as the learner ends is not missed.
        running = is_running(run)
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
                _keep_and_report(evaluation, player.config.environment, json_output=json_output, hint=not hinted)
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
