"""The formats of model files: names, suffixes, and the packages that write and run them. Imports none of these."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import NamedTuple

from seedcli.errors import CheckpointError, UsageError

DESCRIPTION = "seedcli.json"  # name of the description in files that hold others
SIGNATURE = "serving_default"
SAVED_MODEL = "saved_model.pb"


class Format(NamedTuple):
    """A format of model files.

    Attributes:
        name: as in `--format`.
        suffix: of its files; "": a folder.
        runtime: name of the software that runs it, for messages.
        runs: module that runs it.
        writes: modules that write it, besides TensorFlow.
    """

    name: str
    suffix: str
    runtime: str
    runs: str
    writes: tuple[str, ...] = ()


FORMATS = {
    each.name: each
    for each in (
        Format("savedmodel", "", "TensorFlow", "tensorflow"),
        Format("onnx", ".onnx", "ONNX Runtime", "onnxruntime", ("tf2onnx", "onnx")),
        Format("tflite", ".tflite", "LiteRT", "ai_edge_litert"),
    )
}
_PACKAGES = {"ai_edge_litert": "ai-edge-litert"}


def format_of_file(path: Path) -> Format | None:
    """The format of a path, by its suffix or by the SavedModel in the folder; None for anything else."""
    if (path / SAVED_MODEL).is_file():
        return FORMATS["savedmodel"]
    return next((each for each in FORMATS.values() if each.suffix and path.suffix == each.suffix), None)


def find_model(path: Path) -> Format:
    """The format of a model file that exists.

    Raises:
        CheckpointError: there is no such file, or its format is unknown.
    """
    found = format_of_file(path)
    if not path.exists():
        raise CheckpointError(f"{path} does not exist: give a model that seed export has written")
    if found is None or path.is_dir() == bool(found.suffix):
        suffixes = ", ".join(each.suffix for each in FORMATS.values() if each.suffix)
        raise CheckpointError(
            f"{path} is not a model: give a file ({suffixes}) or a SavedModel's folder that seed export has written"
        )
    return found


def require(modules: tuple[str, ...], doing: str, extra: str) -> None:
    """Refuse to continue without packages.

    Args:
        modules: to be imported.
        doing: beginning of the sentence.
        extra: what to install.

    Raises:
        UsageError: one is not installed; names it.
    """
    missing = [_PACKAGES.get(name, name) for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(f"{doing} needs {' and '.join(missing)}, not installed here: pip install {extra}")


def require_runtime(found: Format, path: Path) -> None:
    """Refuse to run a model without its runtime.

    Raises:
        UsageError: it is not installed; names it.
    """
    package = _PACKAGES.get(found.runs, found.runs)
    require((found.runs,), f"{path}, a model for {found.runtime},", package)
