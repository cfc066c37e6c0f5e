"""Environments: one file or folder per family, each with a vector environment. It never imports TensorFlow or `net`,
and imports a simulator only when it is first needed. Agents are outside of it.
"""

from seedcli.config.sections import EnvironmentConfig
from seedcli.envs.base import Family, VectorEnv

__all__ = ["EnvironmentConfig", "Family", "VectorEnv"]
