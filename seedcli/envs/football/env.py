"""Google Research Football (Kurach et al., arXiv 1907.11180): one player of the left team, seen from above."""

from __future__ import annotations

import os

import numpy as np
import numpy.typing as npt

from seedcli.envs.checks import check_actions, nearest
from seedcli.envs.football.config import FootballConfig
from seedcli.envs.football.engines import Engine, EnvpoolEngine, GfootballEngine, Snapshot
from seedcli.envs.football.pitch import draw_pitch
from seedcli.envs.football.rewards import MARKED, PLANES, FootballRewards
from seedcli.errors import EnvironmentFailed, SimulatorMissing, UsageError, first_line
from seedcli.specs import ActionSpec, ArraySpec, EnvSpec, Rows

SCENARIOS: tuple[str, ...] = tuple(
    """
    11_vs_11_competition 11_vs_11_easy_stochastic 11_vs_11_hard_stochastic 11_vs_11_kaggle 11_vs_11_stochastic
    1_vs_1_easy 5_vs_5 academy_3_vs_1_with_keeper academy_corner academy_counterattack_easy academy_counterattack_hard
    academy_empty_goal academy_empty_goal_close academy_pass_and_shoot_with_keeper
    academy_run_pass_and_shoot_with_keeper academy_run_to_score academy_run_to_score_with_keeper
    academy_single_goal_versus_lazy
    """.split()
)

_ACTIONS = ActionSpec((19,))  # the package's default action set


def check_scenario(scenario: str) -> None:
    """Refuse a scenario that does not exist; needs neither package.

    Raises:
        UsageError: names the nearest scenarios.
    """
    if scenario not in SCENARIOS:
        near = nearest(scenario, SCENARIOS)
        hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(SCENARIOS)}"
        raise UsageError(f"environment.id {scenario!r} is not a Google Research Football scenario; {hint}")


class FootballVectorEnv:
    """E matches of one scenario.

    An observation is the super mini-map, [72, 96, 4] uint8 of 0 and 255: planes of the left (our) team, the right team,
    the ball and the active player; our goal is at the first column, the opponent's at the last. Rewards are those of
    `FootballRewards`. An episode that ends by its scenario's clock is truncated: the clock is not in the observation,
    so for the agent the limit is external. One that ends by a goal, by the ball going out of play or by its loss (the
    academy's scenarios) is terminated.

    A second reset rebuilds envpool's engines, and the old ones stay in memory: about 46 MB for each environment.

    Attributes:
        spec: named "football/<scenario>"; one step is one frame.
        num_envs: E.
    """

    def __init__(self, config: FootballConfig, num_envs: int, render: bool = False, threads: int = 0) -> None:
        """Load the engine's package; matches are built by `reset`, with their seeds.

        Args:
            config: `id`, `rewards` and `engine` are used.
            num_envs: E, at least 1.
            render: keep what a picture of the first match is drawn from.
            threads: threads that step envpool's matches; 0: as many as this process has cores.

        Raises:
            ImportError: envpool is not installed.
            UsageError: an unknown scenario, or a field that only Gymnasium has.
            SimulatorMissing: gfootball is not installed.
            EnvironmentFailed: it cannot build the scenario.
        """
        check_scenario(config.id)
        self.num_envs = num_envs
        self.spec = EnvSpec(
            f"football/{config.id}", ArraySpec(PLANES, "uint8", binary=(0, MARKED)), action=_ACTIONS, frames_per_step=1
        )
        try:
            self._engine: Engine = (
                GfootballEngine(config.id, num_envs)
                if config.engine == "gfootball"
                else EnvpoolEngine(config.id, num_envs, min(threads or len(os.sched_getaffinity(0)), num_envs))
            )
        except ImportError as error:
            if config.engine == "envpool":
                raise
            raise SimulatorMissing(
                f"environment.engine gfootball cannot be used on this machine ({first_line(error)}); "
                "build the package gfootball here, or leave environment.engine at envpool"
            ) from error
        except Exception as error:
            raise EnvironmentFailed(f"{self.spec.name} cannot be built: {first_line(error)}") from error
        self._rewards = FootballRewards(num_envs, checkpoints="checkpoints" in config.rewards.split(","))
        # Eleven against eleven and five against five play on after a goal; one against one does too.
        self._ends_on_goal = config.id.startswith("academy_")
        self._final: npt.NDArray[np.bool_] | None = None
        self._rendering = render
        self._shown: Snapshot | None = None

    def reset(self, seed: int, out: Rows) -> None:
        """Seed match i with (seed + i) mod 2³¹, start new episodes, write their first records.

        Raises:
            EnvironmentFailed: the engine's package failed.
        """
        try:
            snapshot = self._engine.reset(seed)
        except EnvironmentFailed:
            raise
        except Exception as error:
            raise EnvironmentFailed(f"{self.spec.name} failed in reset: {first_line(error)}") from error
        self._final = np.ones(self.num_envs, np.bool_)
        self._write(snapshot, out)

    def step(self, actions: npt.NDArray[np.int32], out: Rows) -> None:
        """Take actions [E] in 0 to 18 and write the next records into `out`.

        Raises:
            EnvironmentFailed: an action is out of range, the engine's package failed, or it gave something other than
                planes of 0 and 255; or nothing was reset yet.
        """
        check_actions(actions, self.num_envs, self.spec.action, self.spec.name)
        if self._final is None:
            raise EnvironmentFailed(f"{self.spec.name} has no match to step; reset it first")
        try:
            snapshot = self._engine.step(np.ascontiguousarray(actions, np.int32))
        except EnvironmentFailed:
            raise
        except Exception as error:
            raise EnvironmentFailed(f"{self.spec.name} failed in step: {first_line(error)}") from error
        self._write(snapshot, out)

    def _write(self, now: Snapshot, out: Rows) -> None:
        assert self._final is not None
        self._check(now.planes)
        if self._final.any():
            self._rewards.start(self._final)  # these are first records
        goals = self._rewards.goals(now.score)
        rewards = self._rewards.rewards(goals, now.planes, np.where(self._final, -1, now.owner))
        out_of_time = now.final & (now.steps_left <= 0)
        if self._ends_on_goal:
            out_of_time &= goals == 0
        out.observation[...] = now.planes
        out.reward[...] = rewards
        out.truncated[...] = out_of_time
        out.terminated[...] = now.final & ~out_of_time
        self._final = now.final
        if self._rendering:
            self._shown = now

    def _check(self, planes: npt.NDArray[np.uint8]) -> None:
        shape = (self.num_envs, *PLANES)
        if planes.shape != shape or planes.dtype != np.uint8:
            raise EnvironmentFailed(
                f"{self.spec.name} returned an observation of {planes.dtype} {list(planes.shape)} "
                f"where uint8 {list(shape)} is expected"
            )
        # Check eight cells at a time: their lowest bits, spread over the whole bytes, must reproduce the cells.
        words = np.ascontiguousarray(planes).reshape(self.num_envs, -1).view(np.uint64)
        if (words != (words & np.uint64(0x0101010101010101)) * np.uint64(MARKED)).any():
            index, *cell = (int(n) for n in np.argwhere((planes != 0) & (planes != MARKED))[0])
            raise EnvironmentFailed(
                f"environment {index} of {self.spec.name} returned the value {planes[(index, *cell)]} at {cell}, "
                f"which is neither 0 nor {MARKED}"
            )

    def render(self) -> npt.NDArray[np.uint8]:
        """The first match drawn from above, an RGB picture [464, 640, 3] uint8.

        Raises:
            EnvironmentFailed: it was not built with `render`, or not yet reset.
        """
        if self._shown is None:
            raise EnvironmentFailed(f"{self.spec.name} has no picture; build it with render=True and reset it first")
        shown = self._shown
        return draw_pitch(
            shown.planes[0],
            (int(shown.score[0, 0]), int(shown.score[0, 1])),
            title=self.spec.name.rpartition("/")[2],
            steps_left=int(shown.steps_left[0]),
        )

    def close(self) -> None:
        """End the engine's threads and free what the package frees; safe to call twice."""
        self._engine.close()
        self._final = self._shown = None
