"""Observations that stay on an inference device until they are trained on, so that they are uploaded once.

A device has one table of places, allocated once, a record of one environment in each. Unroll buffers hold places for
all of their records; records that two unrolls share lie in one place. A place is free again when the last buffer that
holds it has been released. Where no place is left, an unroll's observations are uploaded for training from the host's
memory, which has all of them in any case: nothing waits for a place.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from seedcli.errors import SeedError
from seedcli.inference.arena import UnrollBuffer
from seedcli.inference.device_memory import out_of_memory
from seedcli.specs import ArraySpec, EnvSpec, map_arrays


def kept_type(array: ArraySpec) -> np.dtype[Any]:
    """The type of as many bytes that a table has in place of an array's own: GPUs have no tables of int32."""
    return np.dtype("float32" if array.dtype == "int32" else array.dtype)


class ObservationStore:
    """The table of one device.

    A buffer may be released as soon as `read` has returned. The operations of a device run in the order in which they
    were begun, and both `read` and `write` have begun theirs when they return: what is written later into the same
    places, from whichever thread, comes after what has been read. What `read` gives is a copy.

    Args:
        spec: the environment.
        device: what TensorFlow calls the device, such as "GPU:3"; "" is where TensorFlow puts things by itself.
        places: records of one environment that it has room for.

    Raises:
        SeedError: the device has not the memory.

    Attributes:
        device: as given.
        places: as given.
        spare: a place beside them, for rows that nobody reads.
        nbytes: of the table.
    """

    def __init__(self, spec: EnvSpec, device: str, places: int) -> None:
        self.device = device
        self.places = self.spare = places
        self.nbytes = (places + 1) * spec.observation_bytes
        self._spec = spec.observation
        try:
            with self._on_device():
                self._table = map_arrays(
                    lambda array: tf.Variable(tf.zeros([places + 1, *array.shape], kept_type(array)), trainable=False),
                    self._spec,
                )
        except tf.errors.ResourceExhaustedError as error:
            raise self._out_of_memory(error, "to keep observations") from error
        # A stack: what lies below `_top` is free.
        self._free = np.arange(places, dtype=np.int32)
        self._top = places
        self._holders = np.zeros(places, np.int16)  # buffers that hold each place
        self._lock = threading.Lock()

    def _out_of_memory(self, error: tf.errors.ResourceExhaustedError, doing: str, nbytes: int = 0) -> SeedError:
        """What to raise; `nbytes`: of the rows at hand."""
        held = {
            f"the observations of {self.places:,} records that stay on it": self.nbytes,
            "the rows at hand": nbytes,
            "what infers and trains there": None,
        }
        remedy = "set topology.device_trajectories = off, or lower inference.max_envs or training.batch_size"
        return out_of_memory(error, self.device, doing, held, remedy)

    def _on_device(self) -> contextlib.AbstractContextManager[Any]:
        return tf.device(self.device) if self.device else contextlib.nullcontext()

    # -- places, for the inference thread; `give` may be called from any ------------------------------------------

    @property
    def free(self) -> int:
        """Places that nobody holds."""
        return self._top

    def open(self, buffer: UnrollBuffer, *, kept: bool = True) -> None:
        """Give the records of a stream's first buffer their places; not `kept`: nobody reads them."""
        if not (kept and self._hold(buffer, 0)):
            self._pass(buffer)

    def follow(self, buffer: UnrollBuffer, source: UnrollBuffer, start: int) -> None:
        """The same for the buffer that comes after `source`; its first records are those of `source` from `start` on.

        They have been carried over on the host.

        Raises:
            SeedError: the device has not the memory.
        """
        shared = len(source.memory) - start
        if source.store is self:
            assert source.positions is not None, "a buffer in a store has positions"
            if self._hold(buffer, shared, source.positions[start:]):
                return
        elif self._hold(buffer, 0):
            # They found no place when they came.
            rows = map_arrays(lambda a: a[:shared].reshape(-1, *a.shape[2:]), buffer.steps.observation)
            assert buffer.positions is not None
            try:
                self.write(rows, buffer.positions[:shared].reshape(-1))
            except tf.errors.ResourceExhaustedError as error:
                nbytes = sum(leaf.nbytes for leaf in tf.nest.flatten(rows))
                raise self._out_of_memory(error, "to keep observations that found no room before", nbytes) from error
            return
        self._pass(buffer)

    def _positions(self, buffer: UnrollBuffer) -> npt.NDArray[np.int32]:
        if buffer.positions is None:  # of a buffer that is new; the next unroll in it uses them again
            buffer.positions = np.empty((len(buffer.memory), buffer.num_envs), np.int32)
        return buffer.positions

    def _pass(self, buffer: UnrollBuffer) -> None:
        """The buffer's records are not kept."""
        self._positions(buffer)[:] = self.spare

    def _hold(self, buffer: UnrollBuffer, shared: int, positions: npt.NDArray[np.int32] | None = None) -> bool:
        """Places for the buffer's records; the first `shared` ones have `positions`, where they are given.

        Returns:
            Whether there were enough; where not, nobody holds more than before.
        """
        own = self._positions(buffer)
        fresh = own[shared:]
        with self._lock:
            if self._top < fresh.size:
                return False
            self._top -= fresh.size
            fresh[:] = self._free[self._top : self._top + fresh.size].reshape(fresh.shape)
            self._holders[fresh] = 1
            if positions is not None:
                own[:shared] = positions
                self._holders[positions] += 1
        buffer.store = self
        return True

    def give(self, positions: npt.NDArray[np.int32]) -> None:
        """A buffer with these positions [R, E] has been released: places that no other holds are free."""
        with self._lock:
            self._holders[positions] -= 1
            free = positions[self._holders[positions] == 0]
            self._free[self._top : self._top + free.size] = free
            self._top += free.size

    # -- observations ---------------------------------------------------------------------------------------------

    def write(self, observation: Any, positions: npt.NDArray[np.int32]) -> None:
        """Keep an observation [N, ...], or such arrays by name, in the places [N]; it should be on the device.

        Raises:
            tf.errors.ResourceExhaustedError: the device has not the memory; who asks knows what for.
        """

        def keep(array: ArraySpec, table: tf.Variable, rows: Any) -> None:
            rows = tf.convert_to_tensor(rows)
            if array.dtype == "int32":
                rows = tf.bitcast(rows, tf.float32)
            tf.raw_ops.ResourceScatterUpdate(resource=table.handle, indices=positions, updates=rows)

        with self._on_device():
            map_arrays(keep, self._spec, self._table, observation)

    def read(self, positions: npt.NDArray[np.int32]) -> Any:
        """What is kept in the places [R, N], as [R, N, ...] of `kept_type`, on the device.

        Raises:
            tf.errors.ResourceExhaustedError: the device has not the memory; who asks knows what for.
        """
        with self._on_device():
            return map_arrays(
                lambda table: tf.raw_ops.ResourceGather(resource=table.handle, indices=positions, dtype=table.dtype),
                self._table,
            )
