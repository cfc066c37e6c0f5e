"""Observations of a training batch from the devices that inferred with them, instead of from the host's memory."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from tensorflow.python.client import device_lib
from tensorflow.python.framework import config as tensorflow_config

from seedcli.agents.base import AlgorithmSpec
from seedcli.config import Config
from seedcli.errors import UsageError
from seedcli.inference.arena import Arena
from seedcli.inference.device_memory import out_of_memory
from seedcli.inference.policy import AgentPolicy
from seedcli.inference.trajectories import ObservationStore, kept_type
from seedcli.specs import ArraySpec, EnvSpec, map_arrays
from seedcli.training.batches import Piece
from seedcli.training.devices import Devices, PerDevice

_log = logging.getLogger(__name__)

_PART = 2  # of the free memory of a device, "auto" takes at most one in so many


class Trajectories:
    """Gathers the observations of training batches; belongs to the thread that makes them.

    Args:
        spec: the environment.
        devices: that train.

    Attributes:
        uploaded: bytes that have been brought from the host for observations, the numbers of their places included.
        copied: bytes of observations that have been brought from one device to another.
    """

    def __init__(self, spec: EnvSpec, devices: Devices) -> None:
        self._spec = spec.observation
        self._record_bytes = spec.observation_bytes
        self._devices = devices
        self.uploaded = 0
        self.copied = 0

    def gather(self, pieces: list[Piece]) -> PerDevice:
        """The observations [R, B, ...] of pieces side by side, as many columns on each training device.

        When it returns all reading has begun: the pieces' buffers may be released, see `ObservationStore`.

        Raises:
            SeedError: a device has not the memory.
            ValueError: the columns cannot be split evenly.
        """
        total = sum(piece.stop - piece.start for piece in pieces)
        columns, rest = divmod(total, self._devices.replicas)
        if rest:
            raise ValueError(f"{total} columns for {self._devices.replicas} training devices")
        try:
            return PerDevice(
                tuple(
                    self._part(_cut(pieces, i * columns, (i + 1) * columns), device)
                    for i, device in enumerate(self._devices.training)
                )
            )
        except tf.errors.ResourceExhaustedError as error:
            stores = {piece.buffer.store for piece in pieces} - {None}
            records = sum(len(piece.buffer.memory) * (piece.stop - piece.start) for piece in pieces)
            held = {
                f"the observations of {columns} unrolls": records // self._devices.replicas * self._record_bytes,
                "the observations that stay on it": max((store.nbytes for store in stores if store), default=0),
                "what infers and trains there": None,
            }
            remedy = "set topology.device_trajectories = off, or lower training.batch_size or inference.max_envs"
            doing = "to gather a training batch"
            raise out_of_memory(error, self._devices.training[0], doing, held, remedy) from error

    def _part(self, pieces: list[Piece], device: str) -> Any:
        """What one training device gets, of each run of neighbours in one store at a time."""
        runs = groupby(pieces, key=lambda piece: piece.buffer.store)
        parts = [self._run(store, list(run), device) for store, run in runs]
        with _on(device):
            return map_arrays(_merge, self._spec, *parts)

    def _run(self, store: ObservationStore | None, pieces: list[Piece], device: str) -> Any:
        """The columns of pieces that lie in one store (None: on the host), on a training device."""
        if store is None:
            return map_arrays(
                lambda array, *parts: self._upload(array, pieces, parts, device),
                self._spec,
                *[piece.buffer.steps.observation for piece in pieces],
            )
        positions = [_positions(piece) for piece in pieces]
        joined = np.ascontiguousarray(positions[0]) if len(positions) == 1 else np.concatenate(positions, axis=1)
        self.uploaded += joined.nbytes
        observation = store.read(joined)
        if store.device == device:
            return observation
        with _on(device):
            return map_arrays(self._copy, observation)

    def _upload(
        self, array: ArraySpec, pieces: list[Piece], parts: Sequence[npt.NDArray[Any]], device: str
    ) -> tf.Tensor:
        columns = [part[:, piece.start : piece.stop] for piece, part in zip(pieces, parts, strict=True)]
        rows = np.concatenate(columns, axis=1).view(kept_type(array))
        self.uploaded += rows.nbytes
        with _on(device):
            return tf.convert_to_tensor(rows)

    def _copy(self, tensor: tf.Tensor) -> tf.Tensor:
        """The same on the device of the scope."""
        self.copied += tensor.dtype.size * int(np.prod(tensor.shape))
        return tf.identity(tensor)


def _positions(piece: Piece) -> npt.NDArray[np.int32]:
    assert piece.buffer.positions is not None, "a buffer in a store has positions"
    return piece.buffer.positions[:, piece.start : piece.stop]


def _cut(pieces: list[Piece], start: int, stop: int) -> list[Piece]:
    """Columns [start, stop) of pieces side by side."""
    cut, offset = [], 0
    for piece in pieces:
        first, last = max(start - offset, 0), min(stop - offset, piece.stop - piece.start)
        if first < last:
            cut.append(Piece(piece.buffer, piece.start + first, piece.start + last))
        offset += piece.stop - piece.start
    return cut


def _merge(array: ArraySpec, *parts: tf.Tensor) -> tf.Tensor:
    """Columns side by side, in the array's own type."""
    # GPUs concatenate tensors of any type, but do not gather columns of bytes.
    whole = parts[0] if len(parts) == 1 else tf.concat(parts, axis=1)
    return tf.bitcast(whole, tf.int32) if array.dtype == "int32" else whole


def _on(device: str) -> contextlib.AbstractContextManager[Any]:
    return tf.device(device) if device else contextlib.nullcontext()


def keep_observations(
    config: Config, spec: EnvSpec, algorithm: AlgorithmSpec, arena: Arena, policy: AgentPolicy, devices: Devices
) -> Trajectories | None:
    """Have observations stay on the inference devices until they are trained on, where `topology` says so.

    Args:
        config: of the host.
        spec: the environment.
        algorithm: whose unrolls these are.
        arena: says how many records there can be.
        policy: gets a store for each of its devices; no stream has been opened yet.
        devices: that train.

    Returns:
        What makes training batches of them; None: they are uploaded again.

    Raises:
        UsageError: "on" where there is a replay, or a TPU.
        SeedError: a device has not the memory.
    """
    setting = config.topology.device_trajectories
    kinds = {device.device.partition(":")[0] for device in policy.devices}
    if setting == "on" and algorithm.source == "replay":
        raise UsageError(
            "topology.device_trajectories = on needs an algorithm without a replay, which packs observations in the "
            "host's memory: use auto"
        )
    if setting == "on" and "TPU" in kinds:
        raise UsageError("topology.device_trajectories = on is for GPUs and processors, and not for TPUs: use auto")
    if setting == "off" or algorithm.source == "replay" or (setting == "auto" and kinds != {"GPU"}):
        return None
    streams = max(1, config.actors.envs // config.actors.streams)
    places = arena.bound_records(-(-config.inference.max_envs // len(policy.devices)), streams)
    nbytes = (places + 1) * spec.observation_bytes
    names = [device.device for device in policy.devices]
    if setting == "auto" and not _fits(nbytes, names):
        return None
    policy.keep([ObservationStore(spec, device, places) for device in devices.inference])
    _log.info(
        "observations stay on %s until they are trained on: %.1f MB on each, for %s records; %s",
        ", ".join(names),
        nbytes / 1e6,
        f"{places:,}",
        "what finds no room is uploaded again",
    )
    return Trajectories(spec, devices)


def _fits(nbytes: int, devices: list[str]) -> bool:
    """Whether "auto" may take so many bytes on each of the GPUs; where not, the log says why."""
    if tensorflow_config.is_op_determinism_enabled():
        return False  # TensorFlow then writes to a table by way of the host
    for device, free in zip(devices, free_memory(devices), strict=True):
        if _PART * nbytes > free:
            _log.info(
                "observations are uploaded again for training: to stay on %s they would take %.1f MB, more than half "
                "of the %.1f MB that are free there",
                device,
                nbytes / 1e6,
                free / 1e6,
            )
            return False
    return True


def free_memory(devices: list[str]) -> list[int]:
    """Bytes that TensorFlow may still take of each GPU ("GPU:3"); 0 where it does not say."""
    try:
        limits = {
            each.name.rpartition("device:")[2]: int(each.memory_limit) for each in device_lib.list_local_devices()
        }
        taken = [int(tf.config.experimental.get_memory_info(device)["current"]) for device in devices]
    except (tf.errors.OpError, RuntimeError, ValueError):
        return [0] * len(devices)
    return [max(0, limits.get(device, 0) - used) for device, used in zip(devices, taken, strict=True)]
