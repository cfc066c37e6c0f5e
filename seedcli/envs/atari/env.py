"""Atari 2600 games through ale-py's own vector environment.

Facts about ale-py 0.12 that its documentation does not say and this file builds on (each has a test):
`max_num_frames_per_episode` counts emulator frames after the no-ops, and ends the step it falls into; an
action outside the action set is never answered; `noop_max=n` draws 0 to n-1 no-ops; a life lost with
`episodic_life` starts a whole new game. Every array it returns is a fresh one.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from pathlib import Path
from typing import Any

import ale_py
import numpy as np
import numpy.typing as npt
from ale_py import roms, vector_env
from gymnasium.vector import AutoresetMode

from seedcli.envs.atari.config import AtariConfig
from seedcli.envs.checks import check_actions, nearest
from seedcli.errors import EnvironmentFailed, UsageError, first_line
from seedcli.specs import ActionSpec, ArraySpec, EnvSpec, Rows

_SCREEN = (210, 160)  # the emulator's screen, pixels, of all but a few games
_SEEDS = 2**31  # ale-py takes seeds as int32 and leaves a negative one out, so seeds wrap round here


@functools.cache
def games() -> tuple[str, ...]:
    """Every game that can be played here: the ROMs of ale-py (or of ALE_ROMS_DIR) that its vector mode supports."""
    folder = Path(os.environ.get("ALE_ROMS_DIR") or str(Path(roms.__file__).parent))
    found = []
    for game in roms.get_all_rom_ids():
        path = folder / f"{game}.bin"
        # Four games are for two players only: loading one ends the process.
        if path.is_file() and ale_py.ALEInterface.isSupportedROM(path):
            found.append(game)
    return tuple(sorted(found))


def check_game(game: str) -> None:
    """Refuse a game that cannot be played.

    Raises:
        UsageError: names the nearest games.
    """
    if game not in games():
        near = nearest(game, games())
        hint = f"did you mean {' or '.join(near)}?" if near else "games are written like pong or ms_pacman"
        raise UsageError(f"environment.id {game!r} is not an Atari game ale-py can play; {hint}")


class AtariVectorEnv:
    """E emulators of one game, stepped by ale-py's threads.

    An observation is the newest frame only, [height, width, 1] uint8 greyscale: the maximum of the last two
    emulator frames of a step, scaled by area. Rewards are the game's own, unclipped. An episode is truncated
    after `max_frames` emulator frames, not counting the no-ops before its first record.

    Attributes:
        spec: named "atari/<game>"; `frames_per_step` is the frame skip.
        num_envs: E.
    """

    def __init__(self, config: AtariConfig, num_envs: int, render: bool = False, threads: int = 0) -> None:
        """Build the emulators.

        Args:
            config: every field but `max_episode_steps` and `kwargs`, which are Gymnasium's.
            num_envs: E, at least 1.
            render: keep a second emulator in step with the first one, for pictures in colour.
            threads: threads that step the emulators; 0: as many as this process has cores.

        Raises:
            UsageError: an unknown game, or a field that only Gymnasium has.
            EnvironmentFailed: ale-py cannot build it.
        """
        check_game(config.id)
        self.num_envs = num_envs
        self._config = config
        threads = threads or len(os.sched_getaffinity(0))
        self._vector = self._build(num_envs, min(threads, num_envs), height=config.height, width=config.width)
        # ale-py's vector environment has no pictures beside its observations. The emulator is deterministic in
        # seed and actions, so one more of the same task that observes colour at full size shows what the first
        # one plays; the agent's own observations stay those of the vector environment.
        self._mirror = self._build(1, 1, height=_SCREEN[0], width=_SCREEN[1], grayscale=False) if render else None
        self._picture: npt.NDArray[np.uint8] | None = None
        self.spec = EnvSpec(
            f"atari/{config.id}",
            ArraySpec((config.height, config.width, 1), "uint8"),
            ActionSpec((int(self._vector.single_action_space.n),)),
            frames_per_step=config.frame_skip,
        )

    def _build(self, num_envs: int, threads: int, *, height: int, width: int, grayscale: bool = True) -> Any:
        config = self._config
        try:
            # With ALE_ROMS_DIR set, ale-py prints a line to stdout, which belongs to results.
            with contextlib.redirect_stdout(sys.stderr):
                return vector_env.AtariVectorEnv(
                    config.id,
                    num_envs,
                    batch_size=0,
                    num_threads=threads,
                    thread_affinity_offset=-1,
                    max_num_frames_per_episode=config.max_frames,
                    repeat_action_probability=config.repeat_action_probability,
                    full_action_space=config.full_action_set,
                    continuous=False,
                    autoreset_mode=AutoresetMode.NEXT_STEP,
                    img_height=height,
                    img_width=width,
                    grayscale=grayscale,
                    stack_num=1,
                    frameskip=config.frame_skip,
                    maxpool=True,
                    noop_max=config.noop_max + 1 if config.noop_max else 0,
                    episodic_life=config.episodic_life,
                    life_loss_info=False,
                    reward_clipping=False,
                    use_fire_reset=config.fire_reset,
                )
        except Exception as error:
            raise EnvironmentFailed(f"atari/{config.id} cannot be built: {first_line(error)}") from error

    def reset(self, seed: int, out: Rows) -> None:
        """Seed emulator i with (seed + i) mod 2³¹, start new episodes, write their first records."""
        seeds = (seed + np.arange(self.num_envs)) % _SEEDS
        observations, _ = self._vector.reset(seed=seeds)
        out.observation[...] = observations.reshape(out.observation.shape)
        out.reward[...] = 0
        out.terminated[...] = 0
        out.truncated[...] = 0
        if self._mirror is not None:
            self._picture = self._mirror.reset(seed=seeds[:1])[0][0, 0]

    def step(self, actions: npt.NDArray[np.int32], out: Rows) -> None:
        """Take actions [E] in 0 to n - 1 and write the next records into `out`.

        Raises:
            EnvironmentFailed: an action is out of range.
        """
        check_actions(actions, self.num_envs, self.spec.action, self.spec.name)
        actions = np.ascontiguousarray(actions, np.int32)
        observations, rewards, terminated, truncated, _ = self._vector.step(actions)
        out.observation[...] = observations.reshape(out.observation.shape)
        out.reward[...] = rewards
        out.terminated[...] = terminated
        out.truncated[...] = truncated
        if self._mirror is not None:
            self._picture = self._mirror.step(actions[:1])[0][0, 0]

    def render(self) -> npt.NDArray[np.uint8]:
        """The first emulator as an RGB picture [210, 160, 3] uint8: the maximum of a step's last two frames.

        Raises:
            EnvironmentFailed: it was not built with `render`, or not yet reset.
        """
        if self._picture is None:
            raise EnvironmentFailed(f"{self.spec.name} has no picture; build it with render=True and reset it first")
        return self._picture

    def close(self) -> None:
        """End the threads and free the emulators; safe to call twice."""
        self._vector = self._mirror = None
