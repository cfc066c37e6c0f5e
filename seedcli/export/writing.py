"""Writing an acting function in a format, with its description inside."""

from __future__ import annotations

import contextlib
import importlib
import logging
import re
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from seedcli.errors import SeedError
from seedcli.export.function import ActingFunction
from seedcli.models.description import Description
from seedcli.models.formats import DESCRIPTION, SIGNATURE
from seedcli.models.runtimes import EXTRA, METADATA
from seedcli.tensorflow_import import quiet_stderr

_OPSET = 18  # of ONNX, 2022; the newest that tf2onnx 1.17 writes
_ANYTHING = re.compile(b"")
_UNSUPPORTED = re.compile(r"'tf\.(\w+)' op is neither a custom op nor a flex op")


def write_saved_model(function: ActingFunction, description: Description, path: Path) -> None:
    """Write a SavedModel's folder; the description is in assets.extra/."""
    _save(function, path)
    (path / EXTRA).mkdir(exist_ok=True)
    (path / EXTRA / DESCRIPTION).write_text(description.to_json(), encoding="utf-8")


def _save(function: ActingFunction, path: Path) -> None:
    module = tf.Module()
    module.read = function.variables  # a SavedModel holds the variables that its module refers to
    with _quiet():
        tf.saved_model.save(module, str(path), signatures={SIGNATURE: function.concrete()})


def write_onnx(function: ActingFunction, description: Description, path: Path) -> None:
    """Write an ONNX file; the description is in its metadata.

    Raises:
        SeedError: names an operation that ONNX lacks.
    """
    with _quiet():
        names = "onnx", "tf2onnx.convert", "tf2onnx.tf_loader"
        onnx, convert, loader = (importlib.import_module(name) for name in names)
        concrete = function.concrete()
        inputs = {x.name: each.name for x, each in zip(concrete.inputs, function.inputs, strict=False)}
        outputs = {x.name: name for name, x in concrete.structured_outputs.items()}
        # Not `from_function`, which treats captured constants as inputs.
        frozen = loader.from_function(concrete, list(inputs), list(outputs))
        model, _ = convert.from_graph_def(
            frozen,
            input_names=list(inputs),
            output_names=list(outputs),
            tensors_to_rename={**inputs, **outputs},
            opset=_OPSET,
        )
    # tf2onnx keeps an operation that it cannot convert, under its TensorFlow name.
    domains = {each.domain for each in model.opset_import}
    unknown = {
        node.op_type
        for node in model.graph.node
        if node.domain not in domains or not onnx.defs.has(node.op_type, node.domain)
    }
    _refuse(unknown, "ONNX")
    entry = model.metadata_props.add()
    entry.key, entry.value = METADATA, description.to_json()
    onnx.save(model, str(path))


def write_tflite(function: ActingFunction, description: Description, path: Path) -> None:
    """Write a TensorFlow Lite file; the description is in a ZIP archive at its end, where TFLite keeps such files.

    Raises:
        SeedError: names an operation that TensorFlow Lite lacks.
    """
    unknown: set[str] = set()
    with tempfile.TemporaryDirectory() as folder:
        _save(function, Path(folder))
        try:
            with _quiet():
                content = tf.lite.TFLiteConverter.from_saved_model(folder).convert()
        except Exception as error:  # ConverterError has no public name
            unknown = set(_UNSUPPORTED.findall(str(error)))
            if not unknown:
                raise
    _refuse(unknown, "TensorFlow Lite")
    path.write_bytes(content)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(DESCRIPTION, description.to_json())


WRITERS: Mapping[str, Callable[[ActingFunction, Description, Path], None]] = {
    "savedmodel": write_saved_model,
    "onnx": write_onnx,
    "tflite": write_tflite,
}


def _refuse(operations: set[str], name: str) -> None:
    if operations:
        listed = ", ".join(sorted(operations))
        some = "operation" if len(operations) == 1 else "operations"
        raise SeedError(
            f"{name} has no {some} {listed}, which the agent's act uses: write act with other operations, or use "
            "--format savedmodel"
        )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Discard what converters log and print; their errors are raised."""
    loggers: list[Any] = [logging.getLogger(name) for name in ("tensorflow", "tf2onnx", "absl")]
    before = [each.level for each in loggers]
    for each in loggers:
        each.setLevel(logging.CRITICAL)
    try:
        with quiet_stderr(_ANYTHING):
            yield
    finally:
        for each, level in zip(loggers, before, strict=True):
            each.setLevel(level)
