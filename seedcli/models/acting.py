"""Acting with a model: it keeps the state between calls and draws the random numbers for sampling."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from seedcli.errors import SeedError, UsageError
from seedcli.models.description import ACTION, GREEDY_ACTION, Input
from seedcli.models.runtimes import Model


class Acted(NamedTuple):
    """The output of acting for N environments.

    Attributes:
        action, greedy_action: [N, ...], for the environments' `step`.
        details: name → [N, ...].
    """

    action: npt.NDArray[Any]
    greedy_action: npt.NDArray[Any]
    details: Mapping[str, npt.NDArray[Any]]


class ModelActor:
    """Plays the agent of a model.

    Args:
        model: the model.
        seed: of sampled actions.
    """

    def __init__(self, model: Model, seed: int) -> None:
        self._model = model
        self._random = np.random.default_rng(seed)
        self._state = model.zeros("state", 0)
        self._dtype = model.description.spaces.units.dtype

    def act(self, observation: Any, reward: npt.NDArray[np.float32], first: npt.NDArray[np.bool_]) -> Acted:
        """Choose actions.

        Args:
            observation: [N, ...], or a mapping of name → [N, ...], as in the specification.
            reward: [N] float32.
            first: [N] bool, the first record of an episode; all of them when N changes.

        Raises:
            UsageError: the model answers another number of environments.
            SeedError: an action is non-finite.
        """
        description, rows = self._model.description, len(reward)
        if description.batch not in (None, rows):
            raise UsageError(
                f"{self._model.path} has a fixed batch size of {description.batch} and is given {rows}: "
                "give as many, or export it without --batch"
            )
        if any(len(array) != rows for array in self._state.values()) or not self._state:
            self._state = self._model.zeros("state", rows)
        named = observation if isinstance(observation, Mapping) else {"observation": observation}
        given = {"observation": named, "state": self._state, "reward": {"": reward}, "first": {"": first}}

        def value(each: Input) -> npt.NDArray[Any]:
            if each.kind == "noise":
                return self._random.random((rows, *each.shape), np.float32)
            return given[each.kind][each.of]

        found = self._model.runtime.run({each.name: value(each) for each in description.inputs})
        by_kind: dict[str, dict[str, npt.NDArray[Any]]] = {"action": {}, "detail": {}, "state": {}}
        for each in description.outputs:
            by_kind[each.kind][each.of] = found[each.name]
        self._state = by_kind["state"]
        action = by_kind["action"][ACTION].astype(self._dtype)
        if not np.isfinite(action).all():
            raise SeedError(
                f"{self._model.path} returned a non-finite action: its training has diverged, export an earlier "
                "checkpoint"
            )
        greedy = by_kind["action"].get(GREEDY_ACTION)
        return Acted(action, action if greedy is None else greedy.astype(self._dtype), by_kind["detail"])
