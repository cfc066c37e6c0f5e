"""Atari through ale-py's native vector environment: one 84×84 frame a step; stacking is the learner's.

Every option that changes the task is set here, from the configuration, so that no default of the library does.
"""

from __future__ import annotations

import difflib
from typing import Any

import numpy as np
import numpy.typing as npt
from ale_py import roms
from ale_py.vector_env import AtariVectorEnv as NativeVectorEnv
from gymnasium.vector import AutoresetMode

from seedcli.config import EnvironmentConfig
from seedcli.errors import EnvironmentFailed, UsageError
from seedcli.specs import ArraySpec, EnvSpec, StepBatch

# The games of Atari-57 (Mnih et al., 2015; van Hasselt et al., 2016).
ATARI_57 = tuple(
    "alien amidar assault asterix asteroids atlantis bank_heist battle_zone beam_rider berzerk bowling boxing breakout "
    "centipede chopper_command crazy_climber defender demon_attack double_dunk enduro fishing_derby freeway frostbite "
    "gopher gravitar hero ice_hockey jamesbond kangaroo krull kung_fu_master montezuma_revenge ms_pacman "
    "name_this_game phoenix pitfall pong private_eye qbert riverraid road_runner robotank seaquest skiing solaris "
    "space_invaders star_gunner surround tennis time_pilot tutankham up_n_down venture video_pinball wizard_of_wor "
    "yars_revenge zaxxon".split()
)


def check_game(game: str) -> None:
    """Refuse a game that ale-py has no ROM of, naming the nearest ones; raises UsageError."""
    known = roms.get_all_rom_ids()
    if game not in known:
        near = difflib.get_close_matches(game, known, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else "games are named like pong or space_invaders"
        raise UsageError(f'"{game}" is no Atari game: {hint}')


class AtariVectorEnv:
    """Atari games stepped by native threads; see `envs.base.VectorEnv`.

    Args:
        config: the fields marked "atari".
        num_envs: E.
        render: also keep a picture of the first environment.
        threads: worker threads; 0: as many as cores.

    Raises:
        UsageError: an unknown game.
    """

    def __init__(self, config: EnvironmentConfig, num_envs: int, *, render: bool = False, threads: int = 0) -> None:
        check_game(config.id)
        self._options: dict[str, Any] = {
            "max_num_frames_per_episode": config.max_frames,
            "repeat_action_probability": config.repeat_action_probability,
            "full_action_space": config.full_action_set,
            "continuous": False,
            "autoreset_mode": AutoresetMode.NEXT_STEP,
            "img_height": config.height,
            "img_width": config.width,
            "grayscale": True,
            "stack_num": 1,
            "frameskip": config.frame_skip,
            "maxpool": True,
            "noop_max": config.noop_max,
            "episodic_life": config.episodic_life,
            "life_loss_info": False,
            "reward_clipping": False,
            "use_fire_reset": config.fire_reset,
        }
        self._game = config.id
        self._env = NativeVectorEnv(
            config.id, num_envs, num_threads=min(threads, num_envs), thread_affinity_offset=-1, **self._options
        )
        self._screen = self._screen_env() if render else None
        self._picture: npt.NDArray[np.uint8] | None = None
        self.num_envs = num_envs
        self.spec = EnvSpec(
            name=f"atari/{config.id}",
            observation=ArraySpec((config.height, config.width, 1), "uint8"),
            num_actions=int(self._env.single_action_space.n),  # type: ignore[attr-defined]
            frames_per_step=config.frame_skip,
        )

    def _screen_env(self) -> NativeVectorEnv:
        """The first environment once more, in colour and at the console's own size.

        The native environment gives either the small grey frame or a picture; two of them with the same seed and
        the same actions play the same game, because only the way frames are drawn differs.
        """
        options = self._options | {"grayscale": False, "img_height": 210, "img_width": 160}
        return NativeVectorEnv(self._game, 1, num_threads=1, thread_affinity_offset=-1, **options)

    def reset(self, seed: int, out: StepBatch) -> None:
        """See `envs.base.VectorEnv.reset`."""
        observation, _ = self._env.reset(seed=seed)
        out.observation[..., 0] = observation[:, 0]
        out.reward[:] = 0.0
        out.terminated[:] = 0
        out.truncated[:] = 0
        if self._screen is not None:
            self._picture = self._screen.reset(seed=seed)[0][0, 0]

    def step(self, actions: npt.NDArray[np.int32], out: StepBatch) -> None:
        """See `envs.base.VectorEnv.step`."""
        try:
            observation, reward, terminated, truncated, _ = self._env.step(np.ascontiguousarray(actions))
        except RuntimeError as error:
            raise EnvironmentFailed(f"Atari game {self._game} failed in step(): {error}") from error
        out.observation[..., 0] = observation[:, 0]
        out.reward[:] = reward
        out.terminated[:] = terminated
        out.truncated[:] = truncated
        if self._screen is not None:
            self._picture = self._screen.step(np.ascontiguousarray(actions[:1]))[0][0, 0]

    def render(self) -> npt.NDArray[np.uint8]:
        """See `envs.base.VectorEnv.render`: the console's own picture, 210×160."""
        if self._picture is None:
            raise EnvironmentFailed("the environment was built without rendering")
        return self._picture

    def close(self) -> None:
        """See `envs.base.VectorEnv.close`; the native threads end with the object."""
        self._screen = None
