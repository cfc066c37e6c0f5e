"""The lists of packages: what actors import, and what pyproject.toml requires."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from seedcli.build.contents import ACTOR, SIMULATORS, find_contents
from tests.build.importing import unlisted

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

_STEP = """
import json, sys
import numpy as np
import seedcli.cli.main, seedcli.roles.actor.run
from seedcli.config.sources import load_config
from seedcli.envs.placement import create_env_in_actor
from seedcli.roles.actor.codec_choice import choose_codecs
from seedcli.specs import RowLayout, aligned_empty
from tests.build.importing import imported_packages

env = create_env_in_actor(load_config(sys.argv[1], environ={}).config.environment, 2)
choose_codecs(env, 1, ("raw", "zstd"))
layout = RowLayout(env.spec, 2)
rows = layout.views(aligned_empty(layout.nbytes))
env.reset(1, rows)
action = env.spec.action.array
for _ in range(3):
    env.step(np.zeros((2, *action.shape), action.dtype), rows)
print(json.dumps(imported_packages()))
"""


def name_of(requirement: str) -> str:
    return re.split(r"[\[<>=; ]", requirement)[0]


def test_an_actor_file_holds_dependencies_of_the_project() -> None:
    assert set(ACTOR) < {name_of(requirement) for requirement in PROJECT["dependencies"]}
    assert sorted(ACTOR) == list(ACTOR)
    assert not {"tensorflow", "keras", "tensorboard", "matplotlib"} & set(ACTOR)


def test_the_documented_packages_of_an_actor_are_the_list() -> None:
    assert f"\npip install {' '.join(ACTOR)}\n" in (ROOT / "docs" / "running.md").read_text()


def test_simulators_are_the_extras_of_their_name() -> None:
    for name, simulator in SIMULATORS.items():
        (requirement,) = PROJECT["optional-dependencies"][name]
        assert re.split("[<>=; ]", requirement)[0] == simulator.requirement


def test_a_file_of_everything_holds_every_dependency_and_no_extra() -> None:
    contents = find_contents("all", ["mujoco"])
    names = {name_of(requirement) for requirement in contents.requirements}
    assert names == {name_of(requirement) for requirement in PROJECT["dependencies"]}
    assert "gymnasium[mujoco]" in contents.requirements and contents.unneeded == ()


@pytest.mark.parametrize(("preset", "additions"), [("pong_vtrace", []), ("mujoco_vtrace", ["mujoco"])])
def test_stepping_imports_only_what_an_actor_file_holds(preset: str, additions: list[str]) -> None:
    for addition in additions:
        pytest.importorskip(SIMULATORS[addition].module, reason=f"the extra {addition} is not installed")
    done = subprocess.run([sys.executable, "-c", _STEP, preset], cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    packages = json.loads(done.stdout)
    assert {"numpy", "pydantic", "gymnasium"} <= set(packages)
    assert unlisted(packages, find_contents("actor", additions).requirements) == set()


def test_a_package_that_an_actor_file_lacks_is_found() -> None:
    assert unlisted(["numpy", "keras", "rich"], ACTOR) == {"keras"}  # rich comes with typer
