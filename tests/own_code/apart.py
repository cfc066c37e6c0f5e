"""A family whose simulator crashes beside TensorFlow, and declares it, unless CARELESS is set."""

from __future__ import annotations

import os
import sys
from typing import Any, ClassVar, Literal

import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

from seedcli.envs.gymnasium.family import GymnasiumFamily


class Clash(CartPoleEnv):
    def reset(self, **options: Any) -> Any:
        if "tensorflow" in sys.modules:
            os.abort()
        return super().reset(**options)


gymnasium.register("Clash-v0", entry_point=Clash, max_episode_steps=20)


class ApartFamily(GymnasiumFamily):
    isolation: ClassVar[Literal["never", "rendering", "always"]] = "never" if "CARELESS" in os.environ else "always"
