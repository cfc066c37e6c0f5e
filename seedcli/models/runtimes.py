"""Running a model: arrays by name in, arrays by name out, in ONNX Runtime, LiteRT or TensorFlow, on one core."""

from __future__ import annotations

import importlib
import re
import sys
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from seedcli.errors import CheckpointError
from seedcli.models.description import Description, read_description
from seedcli.models.formats import DESCRIPTION, SIGNATURE, find_model, require_runtime
from seedcli.tensorflow_import import import_tensorflow, quiet_stderr

Arrays = Mapping[str, npt.NDArray[Any]]

EXTRA = "assets.extra"  # the folder of a SavedModel that TensorFlow leaves to other programs
METADATA = "seedcli"  # key of the description in ONNX metadata
# What LiteRT writes to stderr when it is ready.
_LITERT_READY = re.compile(rb"INFO: (Created|Initialized) TensorFlow Lite ")


class Runtime(Protocol):
    """A loaded model.

    Attributes:
        inputs: names of its inputs.
    """

    inputs: frozenset[str]

    def description(self) -> str | bytes | None:
        """The description kept in the file; None if it has none."""

    def run(self, inputs: Arrays) -> Arrays:
        """The outputs [N, ...] by name for inputs [N, ...] by name."""


class OnnxRuntime:
    """A `Runtime` of ONNX Runtime on the processor, in the calling thread."""

    def __init__(self, path: Path) -> None:
        onnxruntime = importlib.import_module("onnxruntime")
        options = onnxruntime.SessionOptions()
        # More threads cost a small network more than they save, and spin between calls.
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 4  # errors are raised
        self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.inputs = frozenset(each.name for each in self._session.get_inputs())
        self._outputs = [each.name for each in self._session.get_outputs()]

    def description(self) -> str | None:
        found: str | None = self._session.get_modelmeta().custom_metadata_map.get(METADATA)
        return found

    def run(self, inputs: Arrays) -> Arrays:
        return dict(zip(self._outputs, self._session.run(None, inputs), strict=True))


class LiteRuntime:
    """A `Runtime` of LiteRT (TensorFlow Lite). The file ends with a ZIP archive that holds the description."""

    def __init__(self, path: Path) -> None:
        self._path = path
        interpreter = importlib.import_module("ai_edge_litert.interpreter")
        with quiet_stderr(_LITERT_READY):
            self._interpreter = interpreter.Interpreter(model_path=str(path), num_threads=1)
            self._interpreter.allocate_tensors()
            self._runner = self._interpreter.get_signature_runner(SIGNATURE)
        self.inputs = frozenset(self._runner.get_input_details())

    def description(self) -> bytes | None:
        try:
            with zipfile.ZipFile(self._path) as archive:
                return archive.read(DESCRIPTION)
        except (zipfile.BadZipFile, KeyError):
            return None

    def run(self, inputs: Arrays) -> Arrays:
        found: Arrays = self._runner(**inputs)
        return found


class SavedModelRuntime:
    """A `Runtime` of TensorFlow."""

    def __init__(self, path: Path) -> None:
        self._path = path
        tensorflow = sys.modules.get("tensorflow") or import_tensorflow()
        self._constant = tensorflow.constant
        self._model = tensorflow.saved_model.load(str(path))
        self._function = self._model.signatures[SIGNATURE]
        self.inputs = frozenset(self._function.structured_input_signature[1])

    def description(self) -> bytes | None:
        try:
            return (self._path / EXTRA / DESCRIPTION).read_bytes()
        except OSError:
            return None

    def run(self, inputs: Arrays) -> Arrays:
        found = self._function(**{name: self._constant(value) for name, value in inputs.items()})
        return {name: value.numpy() for name, value in found.items()}


_RUNTIMES: Mapping[str, Callable[[Path], Runtime]] = {
    "onnx": OnnxRuntime,
    "tflite": LiteRuntime,
    "savedmodel": SavedModelRuntime,
}


class Model(NamedTuple):
    """A model file, loaded.

    Attributes:
        path: the file, or a SavedModel's folder.
        format: name of its format.
        description: the description kept in the file.
        runtime: runs it.
    """

    path: Path
    format: str
    description: Description
    runtime: Runtime

    def zeros(self, kind: str, rows: int) -> dict[str, npt.NDArray[Any]]:
        """Zeros [rows, ...] for its inputs of a kind, by `Input.of`."""
        wanted = [each for each in self.description.inputs if each.kind == kind]
        return {each.of: np.zeros((rows, *each.shape), each.dtype) for each in wanted}


def open_model(path: Path) -> Model:
    """Load a model that `seed export` has written.

    Raises:
        CheckpointError: there is none, it is truncated or damaged, or was not written by `seed export`.
        UsageError: its runtime is not installed.
    """
    found = find_model(path)
    require_runtime(found, path)
    try:
        runtime = _RUNTIMES[found.name](path)
        text = runtime.description()
    except Exception as error:  # of any type: each library has its own
        raise CheckpointError(
            f"{path} cannot be loaded by {found.runtime}: it is truncated, damaged or not such a model "
            f"({_first_line(error)}); export the run again"
        ) from error
    if text is None:
        raise CheckpointError(
            f"{path} has no description of an agent: it was not written by seed export, or it is truncated; "
            "export a run with seed export"
        )
    description = read_description(path, text)
    if {each.name for each in description.inputs} != runtime.inputs:
        raise CheckpointError(
            f"{path} has the inputs {', '.join(sorted(runtime.inputs))}, and its description says "
            f"{', '.join(sorted(each.name for each in description.inputs))}: export the run again"
        )
    return Model(path, found.name, description, runtime)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".")[:200] if lines else type(error).__name__
