"""`seed eval --model`: play a model that `seed export` has written; only a SavedModel needs TensorFlow."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError

from seedcli.config.schema import make_environment_config
from seedcli.config.sections import EnvironmentConfig
from seedcli.envs.base import VectorEnv
from seedcli.envs.placement import check_simulator, create_env_beside_tensorflow
from seedcli.envs.registry import check_environment, family_of
from seedcli.errors import EXIT_DONE, CheckpointError, UsageError
from seedcli.models.acting import ModelActor
from seedcli.models.runtimes import Model, open_model
from seedcli.roles.evaluator.episodes import play
from seedcli.roles.evaluator.report import Evaluation, film, report
from seedcli.roles.evaluator.suite_runs import check_output
from seedcli.roles.evaluator.video import VideoWriter
from seedcli.specs import Rows


class ModelPlayer:
    """Plays a model.

    Args:
        model: the model.
        environment: played, with the specification that the model was trained on.
        seed: of sampled actions.
    """

    def __init__(self, model: Model, environment: EnvironmentConfig, seed: int) -> None:
        self._model = model
        self._seed = seed
        sees_rewards = any(each.kind == "reward" for each in model.description.inputs)
        self.environment, self._matches = family_of(environment).counts_wins(environment, sees_rewards)

    def build(self, envs: int, *, render: bool = False) -> VectorEnv:
        """Build the environments.

        Raises:
            CheckpointError: the model is for another environment.
        """
        env = create_env_beside_tensorflow(self.environment, envs, render=render)
        expected = replace(self._model.description.env_spec, name=env.spec.name)
        difference = expected.difference(env.spec)
        if difference is not None:
            env.close()
            raise CheckpointError(
                f"{self._model.path} is a model for {self._model.description.env_spec.name} and does not fit "
                f"{env.spec.name}: {difference}; give --env with one that it fits"
            )
        return env

    def play(self, env: VectorEnv, episodes: int, seed: int, video: VideoWriter | None = None) -> Evaluation:
        """Play `episodes` episodes; see `episodes.play`."""
        actor, description = ModelActor(self._model, self._seed), self._model.description

        def act(out: Rows, first: npt.NDArray[np.bool_]) -> npt.NDArray[Any]:
            return description.spaces.from_native(actor.act(out.observation, out.reward, first).action)

        returns, lengths = play(env, act, episodes, seed, video)
        return Evaluation(
            checkpoint=str(self._model.path),
            env_steps=description.env_steps,
            returns=returns,
            lengths=lengths,
            actions="greedy" if description.greedy else "sampled",
            matches=self._matches,
        )


def run_eval_model(
    path: Path,
    *,
    env_id: str | None,
    sample: bool,
    episodes: int,
    seed: int,
    json_output: bool,
    video: Path | None,
    envs: int,
) -> int:
    """Play a model.

    Args:
        path: of the model.
        env_id: the environment's id in the family the model was trained in; None: the same environment.
        sample: the user asked for sampled actions; a model exported with greedy ones is refused.
        episodes: episodes played.
        seed: of environments and sampling.
        json_output: print a JSON object on stdout instead of a table.
        video: an MP4 file for one more episode.
        envs: environments played at once, unless the model answers a fixed number; at most `episodes` are used.

    Returns:
        The exit status.

    Raises:
        CheckpointError, UsageError: the model or the environment cannot be used, or they do not fit each other.
    """
    if video is not None:
        check_output("--video", video, ".mp4")
    model = open_model(path)
    description = model.description
    if sample and description.greedy:
        raise UsageError(f"--sample: {path} was exported with greedy actions; export the run with --sample")
    environment = _environment(model, env_id)
    if video is not None and description.batch not in (None, 1):
        raise UsageError(
            f"--video records one environment and {path} has a fixed batch size of {description.batch}: export it "
            "without --batch"
        )
    player = ModelPlayer(model, environment, seed)
    env = player.build(description.batch or min(envs, episodes))
    try:
        report(player.play(env, episodes, seed), player.environment, json_output=json_output)
    finally:
        env.close()
    if video is not None:
        film(lambda: player.build(1, render=True), player.play, video, player.environment, seed)
    return EXIT_DONE


def _environment(model: Model, env_id: str | None) -> EnvironmentConfig:
    """The environment a model was trained in, or another one of the same family."""
    values = dict(model.description.config["environment"])
    if env_id not in (None, values.get("id")):
        # Other environments take other arguments.
        values = {"family": values["family"], "id": env_id}
    try:
        environment: EnvironmentConfig = make_environment_config(values)
    except ValidationError as error:
        raise CheckpointError(
            f"{model.path} cannot be played here: its environment does not fit this version of seedcli "
            f"({error.errors()[0]['msg']}); use seedcli {model.description.seedcli}"
        ) from error
    check_environment(environment)
    check_simulator(environment)
    return environment
