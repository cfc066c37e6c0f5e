"""The two packages that provide the engine of Google Research Football, behind one interface.

Both give the same matches: fed with the engine seeds that envpool reports, gfootball 2.10.2 repeats envpool 1.2.5
record for record. Facts about envpool that its documentation does not say and this file builds on (each has a test):
environment i is seeded with seed + i, at construction alone; a step after a final record gives the first record of the
next episode and ignores the action; an episode on its last two steps is flagged truncated even where a goal ended it,
so flags are not taken from here; an action outside 0 to 18 is accepted; every array it returns is a fresh
one; and the engines of a dropped pool stay in memory, about 46 MB each.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from seedcli.errors import EnvironmentFailed

SEEDS = 2**31  # both packages take seeds as int32, so seeds wrap round
_ENGINE_SEEDS = 2_000_000_000  # the package draws an episode's seed up to this
_PHYSICS_STEPS = 10  # physics steps of 10 ms of one environment step, the package's default and the benchmark's


@dataclass(frozen=True)
class Snapshot:
    """What E matches look like after a step.

    Attributes:
        planes: [E, 72, 96, 4] uint8.
        score: [E, 2] goals of the left and of the right team.
        owner: [E] team that holds the ball: 0 left, 1 right, -1 none.
        steps_left: [E] steps until the match's clock ends it; 0 on the record it ends with.
        final: [E] whether the episode is over.
    """

    planes: npt.NDArray[np.uint8]
    score: npt.NDArray[Any]
    owner: npt.NDArray[Any]
    steps_left: npt.NDArray[Any]
    final: npt.NDArray[np.bool_]


class Engine(Protocol):
    """E matches in lock-step, in next-step autoreset mode."""

    def reset(self, seed: int) -> Snapshot:
        """Start new episodes, environment i seeded with (seed + i) mod 2³¹."""

    def step(self, actions: npt.NDArray[np.int32]) -> Snapshot:
        """Take actions [E]; the one for a match that is over starts a new episode instead."""

    def close(self) -> None:
        """Free what can be freed; safe to call twice."""


class EnvpoolEngine:
    """Matches stepped by envpool's threads.

    Raises:
        ImportError: envpool is not installed, or carries no football on this machine.
    """

    def __init__(self, scenario: str, num_envs: int, threads: int) -> None:
        import envpool
        import envpool.gfootball

        self._make: Any = envpool.make
        self._scenario, self._num_envs, self._threads = scenario, num_envs, threads
        self._ids = np.arange(num_envs)
        self._pool: Any = None

    def reset(self, seed: int) -> Snapshot:
        """Rebuild the pool: envpool accepts seeds only at construction."""
        self._pool = None
        with contextlib.redirect_stdout(sys.stderr):
            self._pool = self._make(
                f"gfootball/{self._scenario}-v1",
                env_type="gymnasium",
                num_envs=self._num_envs,
                num_threads=self._threads,
                env_seed=[(seed + i) % SEEDS for i in range(self._num_envs)],
                physics_steps_per_frame=_PHYSICS_STEPS,
            )
            planes, info = self._pool.reset()
        return self._snapshot(planes, info, np.zeros(self._num_envs, np.bool_))

    def step(self, actions: npt.NDArray[np.int32]) -> Snapshot:
        """As the interface says."""
        planes, _, terminated, truncated, info = self._pool.step(actions)
        return self._snapshot(planes, info, terminated | truncated)

    def _snapshot(self, planes: Any, info: dict[str, Any], final: npt.NDArray[np.bool_]) -> Snapshot:
        if not np.array_equal(info["env_id"], self._ids):
            raise EnvironmentFailed(f"envpool returned the environments {info['env_id'].tolist()}, not all in order")
        return Snapshot(planes, info["score"], info["ball_owned_team"], info["steps_left"], final)

    def close(self) -> None:
        """Drop the pool and end its threads."""
        self._pool = None


class GfootballEngine:
    """Matches of the package gfootball, stepped one after the other.

    Raises:
        ImportError: gfootball is not installed, or its engine was not built.
    """

    def __init__(self, scenario: str, num_envs: int) -> None:
        with contextlib.redirect_stdout(sys.stderr):
            package: Any = importlib.import_module("gfootball.env")
            self._envs = [
                package.create_environment(
                    env_name=scenario,
                    stacked=False,
                    representation="extracted",
                    rewards="scoring",
                    render=False,
                    other_config_options={"physics_steps_per_frame": _PHYSICS_STEPS},
                )
                for _ in range(num_envs)
            ]
        self._final = np.zeros(num_envs, np.bool_)
        self._random: list[np.random.Generator] = []

    def reset(self, seed: int) -> Snapshot:
        """As the interface says; every episode's seed is drawn from that of its environment."""
        self._random = [np.random.default_rng((seed + i) % SEEDS) for i in range(len(self._envs))]
        for env in self._envs:
            # Teams may swap roles between episodes, depending on this number.
            env.unwrapped._config.update({"episode_number": 1})
        self._final = np.zeros(len(self._envs), np.bool_)
        return self._snapshot([self._start(i) for i in range(len(self._envs))])

    def _start(self, index: int) -> Any:
        seed = int(self._random[index].integers(_ENGINE_SEEDS))
        env = self._envs[index]
        # The package would keep one seed for all episodes, and with it the order in which it moves the teams.
        env.unwrapped._config.update({"game_engine_random_seed": seed, "reverse_team_processing": bool(seed % 2)})
        return env.reset()

    def step(self, actions: npt.NDArray[np.int32]) -> Snapshot:
        """As the interface says."""
        planes = []
        for index, (env, action) in enumerate(zip(self._envs, actions.tolist(), strict=True)):
            if self._final[index]:
                planes.append(self._start(index))
                self._final[index] = False
            else:
                observation, _, done, _ = env.step(action)
                planes.append(observation)
                self._final[index] = done
        return self._snapshot(planes)

    def _snapshot(self, planes: list[Any]) -> Snapshot:
        raw = [env.unwrapped.observation()[0] for env in self._envs]
        score, owner, left = (np.array([one[k] for one in raw]) for k in ("score", "ball_owned_team", "steps_left"))
        return Snapshot(np.stack(planes), score, owner, left, self._final.copy())

    def close(self) -> None:
        """Return the engines to the package, which keeps them for the next environments."""
        for env in self._envs:
            env.close()
        self._envs = []
