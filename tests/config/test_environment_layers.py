"""Layers of environment.kwargs: a preset's apply only to its own environment."""

from pathlib import Path
from typing import Any

import pytest

from tests.config.test_sources import load


@pytest.mark.parametrize("chosen", [{"flags": {"--env": "CartPole-v1"}}, {"sets": ["environment.id=CartPole-v1"]}])
def test_kwargs_of_a_preset_are_dropped_for_another_environment(chosen: dict[str, Any]) -> None:
    plain = load("recall_r2d2")
    assert plain.config.environment.kwargs == {"delay": 10} and not plain.notes
    resolved = load("recall_r2d2", **chosen)
    assert resolved.config.environment.kwargs == {}
    assert resolved.sources["environment.kwargs"] == "default"
    source = "--env" if "flags" in chosen else "--set"
    assert resolved.notes == (
        'environment.kwargs = { "delay" = 10 } (from preset recall_r2d2) is ignored: it is for environment.id = '
        f'"seedcli.envs.testing:Recall-v0", and {source} selects "CartPole-v1"',
    )


def test_kwargs_set_by_the_user_are_kept_for_another_environment(tmp_path: Path) -> None:
    other = {"--env": "FrozenLake-v1"}
    given = "environment.kwargs={is_slippery = false}"
    resolved = load("recall_r2d2", sets=[given], flags=other)
    assert resolved.config.environment.kwargs == {"is_slippery": False} and not resolved.notes
    assert resolved.sources["environment.kwargs"] == "--set"
    same = load("recall_r2d2", flags={"--env": "seedcli.envs.testing:Recall-v0"})
    assert same.config.environment.kwargs == {"delay": 10} and not same.notes
    assert load("recall_r2d2", sets=["environment.kwargs={}"]).config.environment.kwargs == {}
    file = tmp_path / "mine.toml"
    file.write_text('[environment]\nkwargs = { is_slippery = false }\nid = "FrozenLake-v1"\n')
    resolved = load("recall_r2d2", config_file=file)
    assert resolved.config.environment.kwargs == {"is_slippery": False}
    assert load(None, config_file=file, flags={"--env": "CartPole-v1"}).config.environment.kwargs != {}
