"""From finished unrolls to training batches: a FIFO of buffers, cut into columns, assembled one batch ahead."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from seedcli.agents.base import Agent, UnrollBatch
from seedcli.inference.arena import Arena, UnrollBuffer
from seedcli.specs import ArraySpec, EnvSpec, map_arrays


class Piece(NamedTuple):
    """Columns [start, stop) of a buffer."""

    buffer: UnrollBuffer
    start: int
    stop: int


class UnrollQueue:
    """Finished unrolls, first in, first out; each column is taken once.

    `put` is called by the inference thread, `take` by one consumer.
    """

    def __init__(self) -> None:
        self._buffers: deque[UnrollBuffer] = deque()
        self._offset = 0
        self._columns = 0
        self._wanted = 1  # columns that the consumer waits for; fewer do not wake it
        self._closed = False
        self._ready = threading.Condition()

    def put(self, buffer: UnrollBuffer) -> None:
        """Add a finished buffer."""
        with self._ready:
            self._buffers.append(buffer)
            self._columns += buffer.num_envs
            if self._columns >= self._wanted:
                self._ready.notify()

    def take_buffer(self, *, wait: bool = True) -> UnrollBuffer | None:
        """Take the oldest buffer whole, for a consumer that never calls `take`.

        Returns:
            The buffer, or None: closed, or empty and `wait` is false.
        """
        with self._ready:
            while not self._buffers and not self._closed:
                if not wait:
                    return None
                self._ready.wait()
            if self._closed:
                return None
            buffer = self._buffers.popleft()
            self._columns -= buffer.num_envs
            return buffer

    def close(self) -> None:
        """Wake waiting threads: `take` returns None from now on."""
        with self._ready:
            self._closed = True
            self._ready.notify_all()

    def take(self, columns: int, *, wait: bool = True) -> list[Piece] | None:
        """Take the next `columns` columns as pieces of buffers.

        Args:
            columns: B.
            wait: block until there are enough.

        Returns:
            Pieces that add up to `columns`, or None: closed, or not enough and `wait` is false. A piece that
            ends its buffer is the last one to read it.
        """
        with self._ready:
            self._wanted = columns
            while self._columns < columns and not self._closed:
                if not wait:
                    return None
                self._ready.wait()
            if self._closed:
                return None
            pieces = []
            missing = columns
            while missing:
                buffer = self._buffers[0]
                stop = min(buffer.num_envs, self._offset + missing)
                pieces.append(Piece(buffer, self._offset, stop))
                missing -= stop - self._offset
                self._offset = stop
                if stop == buffer.num_envs:
                    self._buffers.popleft()
                    self._offset = 0
            self._columns -= columns
            return pieces


class TrainingBatch(NamedTuple):
    """A batch of unrolls, and the data that stays on the host when they are on the training devices.

    Attributes:
        unrolls: host arrays until `training.devices.Devices.place` copies them to the training devices.
        versions: int64 [K+T+1, B], the policy version that chose each record's action.
        counted: bool [K+T+1, B], whether the record and the next form a transition that counts as trained on: false
            for the last record of an episode and in columns of weight 0.
        serials: int64 [B], serials of the unrolls in the replay; None from a queue.
    """

    unrolls: UnrollBatch
    versions: npt.NDArray[np.int64]
    counted: npt.NDArray[np.bool_]
    serials: npt.NDArray[np.int64] | None = None

    @classmethod
    def of(
        cls, unrolls: UnrollBatch, versions: npt.NDArray[np.int64], serials: npt.NDArray[np.int64] | None = None
    ) -> TrainingBatch:
        """Build the batch of unrolls that are still on the host."""
        counted = ~(unrolls.terminated | unrolls.truncated) & (unrolls.weights > 0)
        return cls(unrolls, versions, np.asarray(counted), serials)


def zero_unrolls(agent: Agent, spec: EnvSpec, columns: int) -> UnrollBatch:
    """A training batch of `columns` columns of zeros, in arrays of the host, of the shapes and dtypes of a real one."""
    algorithm = agent.algorithm

    def zeros(array: ArraySpec) -> npt.NDArray[Any]:
        return np.zeros((algorithm.batch_records, columns, *array.shape), array.dtype)

    number, flag = ArraySpec((), "float32"), ArraySpec((), "bool")
    return UnrollBatch(
        observation=map_arrays(zeros, spec.observation),
        reward=zeros(number),
        terminated=zeros(flag),
        truncated=zeros(flag),
        action=zeros(spec.action.array),
        recorded={name: zeros(array) for name, array in algorithm.recorded.items()},
        state=tf.nest.map_structure(np.asarray, agent.initial_state(columns)),
        weights=np.ones(columns, np.float32),
    )


def _join(parts: list[npt.NDArray[Any]], axis: int) -> npt.NDArray[Any]:
    return np.ascontiguousarray(parts[0]) if len(parts) == 1 else np.concatenate(parts, axis=axis)


def _weights(piece: Piece) -> npt.NDArray[np.float32]:
    """1 for columns that may be trained on, 0 for the others."""
    keep = piece.buffer.keep
    if keep is None:
        return np.ones(piece.stop - piece.start, np.float32)
    return keep[piece.start : piece.stop].astype(np.float32)


def assemble(pieces: list[Piece], arena: Arena) -> TrainingBatch:
    """Copy pieces into one contiguous time-major batch on the host, and release finished buffers to the arena.

    A single piece that covers its buffer is copied too: the next unroll needs the buffer long before the training step
    ends.

    Args:
        pieces: in the order of the batch's columns.
        arena: owner of the buffers.
    """

    def gather(read: Any) -> Any:
        def join(*arrays: npt.NDArray[Any]) -> npt.NDArray[Any]:
            columns = zip(arrays, pieces, strict=True)
            return np.concatenate([array[:, piece.start : piece.stop] for array, piece in columns], axis=1)

        return map_arrays(join, *[read(piece.buffer) for piece in pieces])

    states = [
        tf.nest.map_structure(lambda x, p=piece: np.asarray(x)[p.start : p.stop], piece.buffer.state)
        for piece in pieces
    ]
    state = tf.nest.map_structure(lambda *parts: _join(list(parts), 0), *states)
    unrolls = UnrollBatch(
        observation=gather(lambda b: b.rows.observation),
        reward=gather(lambda b: b.rows.reward),
        terminated=gather(lambda b: b.rows.terminated.view(np.bool_)),
        truncated=gather(lambda b: b.rows.truncated.view(np.bool_)),
        action=gather(lambda b: b.action),
        recorded={name: gather(lambda b, n=name: b.recorded[n]) for name in pieces[0].buffer.recorded},
        state=state,
        weights=np.concatenate([_weights(piece) for piece in pieces]),
    )
    versions = np.concatenate(
        [np.broadcast_to(p.buffer.version[:, None], (len(p.buffer.version), p.stop - p.start)) for p in pieces], axis=1
    )
    for piece in pieces:
        if piece.stop == piece.buffer.num_envs:
            arena.release(piece.buffer)
    return TrainingBatch.of(unrolls, versions)
