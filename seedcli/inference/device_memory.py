"""Out of memory on a device: one sentence that names what takes the memory and which settings to lower."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from seedcli.errors import SeedError

# The device in TensorFlow's message: ".../task:0/device:GPU:3 by allocator GPU_3_bfc".
_NAMED = re.compile(r"device:([A-Z]+:\d+)")


def bytes_of(arrays: Iterable[Any]) -> int:
    """Bytes of TensorFlow or Keras variables or tensors, from shapes and dtypes alone; copies nothing to the host."""
    return sum(tf.as_dtype(a.dtype).size * int(np.prod(a.shape, dtype=np.int64)) for a in arrays)


def out_of_memory(
    error: tf.errors.ResourceExhaustedError, device: str, doing: str, held: Mapping[str, int | None], remedy: str
) -> SeedError:
    """Build the error to raise in place of TensorFlow's.

    Args:
        error: TensorFlow's error; the device it names takes precedence over `device`.
        device: the likely device, such as "GPU:3"; "": TensorFlow's default device.
        doing: the operation that failed, such as "while building the agent".
        held: contents that the device must hold → bytes; None: unknown. Contents of 0 bytes are left out; at least
            one must remain.
        remedy: which settings to lower, and what else helps.
    """
    named = _NAMED.search(str(error))
    device = named[1] if named else device
    parts = [what if size is None else f"{what} ({_size(size)})" for what, size in held.items() if size != 0]
    listed = " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))
    return SeedError(
        f"{device or 'the device'} ran out of memory {doing}{_peak(device)}: it must hold {listed}; {remedy}"
    )


@contextlib.contextmanager
def building(doing: str, remedy: str) -> Iterator[None]:
    """Context in which networks and their tables are built; for the arguments see `out_of_memory`.

    Raises:
        SeedError: a device is out of memory.
    """
    try:
        yield
    except tf.errors.ResourceExhaustedError as error:
        held = {"the network's weights": None, "agent states of its environments": None}
        raise out_of_memory(error, "", doing, held, remedy) from error


def _peak(device: str) -> str:
    """TensorFlow's peak memory use on a GPU, in parentheses; "" if unknown."""
    if device.startswith("GPU"):
        with contextlib.suppress(tf.errors.OpError, RuntimeError, ValueError):
            peak = int(tf.config.experimental.get_memory_info(device)["peak"])
            return f" (TensorFlow's peak: {_size(peak)})"
    return ""


def _size(nbytes: int) -> str:
    return f"{nbytes / 1e6:,.1f} MB" if nbytes >= 100_000 else f"{nbytes / 1e3:,.1f} kB"
