"""A device that is out of memory: one sentence with what took the memory and which settings to lower."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from seedcli.errors import SeedError

# How TensorFlow names the device whose memory it wanted: ".../task:0/device:GPU:3 by allocator GPU_3_bfc".
_NAMED = re.compile(r"device:([A-Z]+:\d+)")


def bytes_of(arrays: Iterable[Any]) -> int:
    """Bytes of variables (Keras' too) or tensors, by their shapes and types alone: nothing is brought to the host."""
    return sum(tf.as_dtype(a.dtype).size * int(np.prod(a.shape, dtype=np.int64)) for a in arrays)


def out_of_memory(
    error: tf.errors.ResourceExhaustedError, device: str, doing: str, held: Mapping[str, int | None], remedy: str
) -> SeedError:
    """What to raise in place of TensorFlow's error.

    Args:
        error: TensorFlow's; the device it names goes before `device`.
        device: where it probably was, such as "GPU:3"; "" is where TensorFlow puts things by itself.
        doing: what for, such as "to build the agent".
        held: what is or should be in the device's memory, and its bytes; None: they are not known. What takes 0 bytes
            is left out, and there is something else.
        remedy: which settings to lower, and what else helps.
    """
    named = _NAMED.search(str(error))
    device = named[1] if named else device
    parts = [what if size is None else f"{what} ({_size(size)})" for what, size in held.items() if size != 0]
    listed = " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))
    return SeedError(
        f"{device or 'the device'} is out of memory {doing}{_peak(device)}: it is to hold {listed}; {remedy}"
    )


@contextlib.contextmanager
def building(doing: str, remedy: str) -> Iterator[None]:
    """Within it networks and what belongs to them are made; see `out_of_memory`.

    Raises:
        SeedError: a device is out of memory.
    """
    try:
        yield
    except tf.errors.ResourceExhaustedError as error:
        held = {"the network's weights": None, "agent states of its environments": None}
        raise out_of_memory(error, "", doing, held, remedy) from error


def _peak(device: str) -> str:
    """What TensorFlow has held of a GPU; "" where it does not say."""
    if device.startswith("GPU"):
        with contextlib.suppress(tf.errors.OpError, RuntimeError, ValueError):
            peak = int(tf.config.experimental.get_memory_info(device)["peak"])
            return f", of which TensorFlow has had {_size(peak)} at most"
    return ""


def _size(nbytes: int) -> str:
    return f"{nbytes / 1e6:,.1f} MB" if nbytes >= 100_000 else f"{nbytes / 1e3:,.1f} kB"
