"""The family gymnasium."""

from __future__ import annotations

from typing import Any, ClassVar

from seedcli.envs.base import BareGroup, Family, VectorEnv
from seedcli.envs.gymnasium.config import GymnasiumConfig


class GymnasiumFamily(Family):
    """Any Gymnasium environment. Its pictures are drawn in a separate process: its renderer may be anything."""

    Config = GymnasiumConfig
    preset: ClassVar[str] = "gymnasium_vtrace"
    adapts_gymnasium: ClassVar[bool] = True
    library: ClassVar[str] = "gymnasium"

    def make(self, config: GymnasiumConfig, num_envs: int, *, render: bool = False, threads: int = 0) -> VectorEnv:
        from seedcli.envs.gymnasium.env import GymnasiumVectorEnv
        from seedcli.envs.gymnasium.registered import make_registered

        registered = None if render else make_registered(config, num_envs)
        return registered or GymnasiumVectorEnv(config, num_envs, render)

    def check(self, config: GymnasiumConfig, kwargs_source: str) -> None:
        from seedcli.envs.gymnasium import env

        env.check_id(config.id)
        if config.kwargs:
            env.check_kwargs(config, kwargs_source)

    def check_simulator(self, config: GymnasiumConfig) -> bool:
        from seedcli.envs.gymnasium import env

        return env.has_simulator(config)

    def preset_for(self, config: GymnasiumConfig) -> str:
        from seedcli.envs.gymnasium.env import is_mujoco

        return "mujoco_vtrace" if is_mujoco(config.id) else self.preset

    def frames_per_second(self, config: GymnasiumConfig) -> float:
        from seedcli.envs.gymnasium.env import frames_per_second

        return frames_per_second(config)

    def make_bare(self, config: GymnasiumConfig, num_envs: int, threads: int, seed: int) -> BareGroup:
        import gymnasium
        from gymnasium.vector import AutoresetMode, SyncVectorEnv

        from seedcli.envs.gymnasium.registered import make_registered

        registered = make_registered(config, num_envs)
        if registered:
            group = registered.envs[0]
        else:
            options: dict[str, Any] = dict(config.kwargs)
            if config.max_episode_steps:
                options["max_episode_steps"] = config.max_episode_steps
            group = SyncVectorEnv(
                [lambda: gymnasium.make(config.id, **options)] * num_envs, autoreset_mode=AutoresetMode.NEXT_STEP
            )
        group.reset(seed=seed)
        group.action_space.seed(1)
        return BareGroup(group, group.action_space.sample)
