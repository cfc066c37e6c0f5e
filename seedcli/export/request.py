"""Checks of `seed export` that run before TensorFlow is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from seedcli.config.schema import Config
from seedcli.config.sources import from_toml_file
from seedcli.envs.placement import check_simulator
from seedcli.errors import UsageError
from seedcli.files import check_folder
from seedcli.models.formats import FORMATS, Format, format_of_file, require
from seedcli.training.checkpoint_files import Checkpoint, find_checkpoint


class Request(NamedTuple):
    """The model to export.

    Attributes:
        checkpoint: the agent.
        config: of its run.
        out: the file, or the folder of a SavedModel.
        format: its format.
        greedy: greedy actions instead of sampled ones.
        batch: environments answered at once; None: any number.
    """

    checkpoint: Checkpoint
    config: Config
    out: Path
    format: Format
    greedy: bool
    batch: int | None


def check_request(
    run: Path, out: Path, format_name: str | None, *, greedy: bool, batch: int | None, overwrite: bool
) -> Request:
    """Refuse a model that cannot be exported here, or an output path that cannot be written.

    Args:
        run: a run's folder, or a checkpoint's.
        out: see `Request`.
        format_name: name of the format; None: by the suffix of `out`.
        greedy, batch: see `Request`.
        overwrite: an existing model `out` may be replaced.

    Raises:
        UsageError: a wrong suffix, an unusable `out`, or a package that is not installed.
        CheckpointError: there is no good checkpoint.
        SimulatorMissing: the environment's simulator is not installed.
    """
    chosen = _format(out, format_name)
    require(chosen.writes + (chosen.runs,), f"--format {chosen.name}", "'seedcli[export]'")
    if out.exists() and not overwrite:
        raise UsageError(f"{out} exists: name another file, or give --overwrite")
    if overwrite and out.exists() and out.is_dir() == bool(chosen.suffix):
        raise UsageError(f"{out} is a {'folder' if out.is_dir() else 'file'}, which --overwrite does not replace")
    if out.is_dir() and format_of_file(out) is None and any(out.iterdir()):
        raise UsageError(f"{out} is a folder of other files, which --overwrite does not replace: name another one")
    check_folder(out)
    checkpoint = find_checkpoint(run)
    config = from_toml_file(checkpoint.config_path)
    check_simulator(config.environment)
    return Request(checkpoint, config, out, chosen, greedy, batch)


def _format(out: Path, name: str | None) -> Format:
    by_suffix = {each.suffix: each for each in FORMATS.values() if each.suffix}
    if name is None:
        if out.suffix not in by_suffix:
            raise UsageError(
                f"{out} does not say which format is wanted: end its name in {' or '.join(by_suffix)}, or give "
                "--format savedmodel for a folder"
            )
        return by_suffix[out.suffix]
    chosen = FORMATS[name]
    if chosen.suffix != (out.suffix if out.suffix in by_suffix else ""):
        wanted = f"must end in {chosen.suffix}" if chosen.suffix else "must be a folder without such a suffix"
        raise UsageError(f"{out} with --format {chosen.name} {wanted}")
    return chosen
