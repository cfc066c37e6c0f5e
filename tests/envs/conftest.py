"""Fixtures of the environment tests."""

from tests.envs.dmlab.lab_double import lab, lab_double

__all__ = ["lab", "lab_double"]
