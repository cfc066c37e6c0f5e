"""Distributed deep reinforcement learning with central inference, as one command-line tool."""

__version__ = "0.1.0"
