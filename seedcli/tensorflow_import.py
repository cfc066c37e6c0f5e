"""Importing TensorFlow: quickly, without its start-up messages, and with the kernels that suit the network."""

from __future__ import annotations

import gc
import importlib
import logging
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# Output of TensorFlow's C++ code on descriptor 2 before its log levels apply: abseil's warning about that, lines in
# glog's format, and the continuation line of its note on CPU instructions.
_IRRELEVANT_LINES = re.compile(
    rb"WARNING: All log messages before absl::InitializeLog\(\)"
    rb"|[IWE]\d{4} \d\d:\d\d:\d+\.\d+ "
    rb"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IWE] "
    rb"|To enable the following instructions: "
)

# Read once, while TensorFlow is imported. Its default depends on the processor.
_ONEDNN = "TF_ENABLE_ONEDNN_OPTS"
_convolutions = False
_program = False


def start_quickly() -> None:
    """Make `import_tensorflow` skip what only a user's own process needs; for processes of the program `seed`.

    Keras then does not import matplotlib, which takes a second and which only its functions for galleries need. The
    garbage collector also ignores the imported objects: they are never freed, and each full collection would scan them.
    """
    global _program
    _program = True


def expect_convolutions() -> None:
    """Make `import_tensorflow` enable oneDNN, whose gradients of convolutions are twice as fast on CPUs.

    TensorFlow itself enables it only on processors with certain instructions. Without convolutions, TensorFlow's
    default remains, because an update of a small MLP is a fifth slower with oneDNN. TF_ENABLE_ONEDNN_OPTS takes
    precedence.
    """
    global _convolutions
    _convolutions = True


@contextmanager
def _kernels() -> Iterator[None]:
    """Set `_ONEDNN` in the block if convolutions are expected; other processes do not inherit it."""
    if not _convolutions or _ONEDNN in os.environ:
        yield
        return
    os.environ[_ONEDNN] = "1"
    try:
        yield
    finally:
        del os.environ[_ONEDNN]


@contextmanager
def _quickly() -> Iterator[None]:
    """Disable garbage collection in the block, which creates permanent objects, and see `start_quickly`."""
    hidden = _program and "matplotlib" not in sys.modules
    if hidden:
        sys.modules["matplotlib"] = None  # type: ignore[assignment]  # imports of it raise ImportError
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if hidden:
            del sys.modules["matplotlib"]
        if _program:
            gc.freeze()
        if collecting:
            gc.enable()


@contextmanager
def quiet_stderr(irrelevant: re.Pattern[bytes] = _IRRELEVANT_LINES) -> Iterator[None]:
    """Buffer descriptor 2 of the process, then write out all lines except those that begin with a pattern.

    By default these are TensorFlow's start-up messages.

    Log levels do not apply to lines that TensorFlow writes while its libraries load, so the descriptor is redirected
    to a temporary file. If the block raises, all buffered lines are written.
    """
    sys.stderr.flush()
    saved = os.dup(2)
    try:
        with tempfile.TemporaryFile() as held:
            os.dup2(held.fileno(), 2)
            failed = False
            try:
                yield
            except Exception:  # not KeyboardInterrupt or SystemExit from a signal
                failed = True
                raise
            finally:
                sys.stderr.flush()
                os.dup2(saved, 2)
                held.seek(0)
                for line in held:
                    if failed or not irrelevant.match(line):
                        os.write(2, line)
    finally:
        os.close(saved)


def quiet_tensorflow() -> None:
    """Limit TensorFlow's C++ log to errors, unless the user has set a level; call before its first import."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def import_tensorflow() -> Any:
    """Import TensorFlow and find its devices without its start-up messages; returns the module.

    Call `expect_convolutions` first if the network to train has convolutions. Python warnings go to our log instead of
    stderr. Nothing is silenced where the user has set TF_CPP_MIN_LOG_LEVEL to 0.
    """
    quiet_tensorflow()
    if os.environ["TF_CPP_MIN_LOG_LEVEL"] == "0":
        with _kernels(), _quickly():
            return importlib.import_module("tensorflow")
    with quiet_stderr(), _kernels(), _quickly():
        tensorflow = importlib.import_module("tensorflow")
        # Listing devices logs too (a CUDA build without a driver); it does not fix any setting.
        tensorflow.config.list_physical_devices()
    logging.getLogger("tensorflow").handlers.clear()
    return tensorflow
