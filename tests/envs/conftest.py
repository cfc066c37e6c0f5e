"""Fixtures of every test of environments."""

from tests.envs.dmlab.lab_double import lab, lab_double

__all__ = ["lab", "lab_double"]
