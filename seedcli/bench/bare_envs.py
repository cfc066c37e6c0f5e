"""A family's own library in a bare loop: the environments of a run, stepped with random actions.

The denominator of `seed bench training`. Groups of environments alternate, as an actor's streams do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from seedcli.config.schema import Config
from seedcli.config.sections import EnvironmentConfig
from seedcli.envs.registry import family_of
from seedcli.errors import UsageError
from seedcli.specs import split_envs

_ACTION_SETS = 64

# A call does some work and returns the number of environment steps it amounts to.
Turn = Callable[[], int]


def library(config: EnvironmentConfig) -> str:
    """The name of the library that is stepped."""
    return family_of(config).library


@contextmanager
def environment_turn(config: Config, cores: int) -> Iterator[Turn]:
    """Step as many environments as the run has, in groups as an actor does, with random actions.

    Args:
        config: of the run.
        cores: threads for libraries that have their own.

    Raises:
        UsageError: the family has no bare loop.
    """
    played = config.environment
    family = family_of(played)
    if not family.library:
        raise UsageError(f"environment.family {played.family} cannot be measured bare: choose another preset")
    if family.isolation == "always":
        raise UsageError(
            f"environment.family {played.family} cannot be measured bare, because it must not share a process with "
            "TensorFlow: choose another preset"
        )
    total = config.actors.count * config.actors.envs
    # Two groups hide the stepping time of libraries that have their own threads.
    split = split_envs(total, min(2, config.actors.streams))
    groups = [family.make_bare(played, envs, cores, 1 + i * total) for i, envs in enumerate(split)]
    actions = [[group.sample() for _ in range(_ACTION_SETS)] for group in groups]
    turns = 0
    for group, choices in zip(groups, actions, strict=True):
        if group.overlapped:
            group.env.send(choices[0])

    def turn() -> int:
        nonlocal turns
        turns += 1
        for group, choices in zip(groups, actions, strict=True):
            chosen = choices[turns % _ACTION_SETS]
            if group.overlapped:
                # One group steps while the results of the other are received.
                group.env.recv()
                group.env.send(chosen)
            else:
                group.env.step(chosen)
        return total

    try:
        yield turn
    finally:
        for group in groups:
            if group.overlapped:
                group.env.recv()
        for group in groups:
            group.env.close()
