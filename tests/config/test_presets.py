"""Variants of presets: precedence, sources of values, and invalid bases."""

from pathlib import Path

import pytest

from seedcli.config import presets as preset_files
from seedcli.config.presets import presets
from seedcli.config.sources import to_toml
from tests.config.test_sources import load, refusal

PLAIN = '[preset]\ndescription = "plain"\n[run]\nsteps = 7\nseed = 5\n[training]\nbatch_size = 48\n'
VARIED = '[preset]\nbase = "plain"\ndescription = "varied"\n[training]\nbatch_size = 96\n[topology]\nplatform = "gpu"\n'


def variant(folder: Path, monkeypatch: pytest.MonkeyPatch, **files: str) -> None:
    """Use a folder of presets that contains only these files."""
    for name, text in files.items():
        (folder / f"{name}.toml").write_text(text, encoding="utf-8")
    monkeypatch.setattr(preset_files, "_folder", lambda: folder)


def test_variant_overrides_its_base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    third = '[preset]\nbase = "varied"\n[run]\nseed = 6\n'
    variant(tmp_path, monkeypatch, plain=PLAIN, varied=VARIED, third=third)
    resolved = load("third", sets=["topology.precision=mixed_float16"])
    config, sources = resolved.config, resolved.sources
    assert (config.run.preset, sources["run.preset"]) == ("third", "preset third")
    assert (config.run.seed, sources["run.seed"]) == (6, "preset third")
    assert (config.training.batch_size, sources["training.batch_size"]) == (96, "preset varied")
    assert (config.run.steps, sources["run.steps"]) == (7, "preset plain")
    assert (config.topology.platform, sources["topology.platform"]) == ("gpu", "preset varied")
    assert sources["topology.precision"] == "--set"
    assert presets() == {"plain": ("plain", ""), "third": ("", "varied"), "varied": ("varied", "plain")}
    assert "batch_size = 96  # preset varied" in to_toml(resolved).splitlines()


def test_run_of_a_variant_resumes_without_its_base(tmp_path: Path) -> None:
    """A saved config.toml holds every value."""
    resolved = load("football_vtrace_8gpu", sets=["topology.training_devices=2"])
    (tmp_path / "config.toml").write_text(to_toml(resolved), encoding="utf-8")
    again = load(None, run_folder=tmp_path)
    assert again.config == resolved.config == load("football_vtrace_8gpu", config_file=tmp_path / "config.toml").config
    assert resolved.sources["agent.network.channels"] == "preset football_vtrace"
    assert resolved.sources["topology.inference_devices"] == "preset football_vtrace_8gpu"
    assert again.sources["topology.inference_devices"] == f"run {tmp_path}"


def test_config_file_may_name_a_base(tmp_path: Path) -> None:
    """For example an edited copy of a preset file."""
    file = tmp_path / "mine.toml"
    file.write_text('[preset]\nbase = "pong_vtrace"\n[run]\nseed = 9\n', encoding="utf-8")
    resolved = load(None, config_file=file)
    assert (resolved.config.run.seed, resolved.sources["run.seed"]) == (9, f"file {file}")
    assert resolved.config.environment == load("pong_vtrace").config.environment
    assert resolved.sources["environment.id"] == "preset pong_vtrace"
    assert load("pong_vtrace", config_file=file).sources["run.seed"] == f"file {file}"
    assert refusal("cartpole_vtrace", config_file=file) == (
        f'{file} has base = "pong_vtrace", which conflicts with --preset cartpole_vtrace: remove one of the two'
    )
    file.write_text('[preset]\nbase = "pong"\n', encoding="utf-8")
    assert refusal(None, config_file=file).startswith(
        f"Unknown preset 'pong', the base of file {file}. Did you mean po"
    )


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ({"a": '[preset]\nbase = "a"\n'}, 'preset a has base = "a", which is based on it: bases must not form a cycle'),
        (
            {"a": '[preset]\nbase = "b"\n', "b": '[preset]\nbase = "c"\n', "c": '[preset]\nbase = "b"\n'},
            'preset c has base = "b", which is based on it',
        ),
        ({"a": '[preset]\nbase = "aa"\n', "ab": PLAIN}, "Unknown preset 'aa', the base of preset a. Did you mean a"),
    ],
)
def test_unknown_and_cyclic_bases_are_refused(
    files: dict[str, str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variant(tmp_path, monkeypatch, **files)
    assert refusal("a").startswith(sentence)
