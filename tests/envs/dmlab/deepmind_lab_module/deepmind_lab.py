"""Stands for the module of that name, also in processes that tests start: put this folder on their path."""

import dm_env  # noqa: F401  # the real one imports it too

from tests.envs.dmlab.lab_double import Lab

__all__ = ["Lab"]
