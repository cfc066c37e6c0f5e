"""Holds environments back while their unrolls wait for training, for `training.synchronous`."""

from __future__ import annotations

from seedcli.inference.streams import Stream


class Pace:
    """Decides which streams wait, so that environments continue only with weights trained on their unrolls.

    A stream waits while it has at least as many untrained unrolls as a batch takes from each environment, rounded up.
    If all streams wait, these unrolls fill a batch, so training can always continue.

    The inference thread owns it; only `trained` is called from another thread.

    Args:
        batch_size: columns of a training batch on this host.
    """

    def __init__(self, batch_size: int) -> None:
        self._batch_size = batch_size
        self._handed = 0
        self._trained = 0

    def handed_on(self, stream: Stream) -> None:
        """Note that a stream has handed on an unroll; the queue keeps their order."""
        stream.untrained.append(self._handed)
        self._handed += stream.num_envs

    def trained(self) -> None:
        """Note that a batch has been trained on, and its weights published to inference."""
        self._trained += self._batch_size

    def holds(self, stream: Stream, training_envs: int) -> bool:
        """Whether a stream waits, with `training_envs` environments connected; false for evaluation streams."""
        untrained = stream.untrained
        while untrained and untrained[0] < self._trained:
            untrained.popleft()
        return len(untrained) * training_envs >= self._batch_size
