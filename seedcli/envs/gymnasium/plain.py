"""Converts observations and actions, one or a batch, between plain environments and the arrays of a specification.

A plain environment is what `gymnasium.make` gives, without the adapter of this package around it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import Space
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete

from seedcli.envs.gymnasium.spaces import Actions, ActionUnits, Leaf, Observations
from seedcli.errors import UsageError
from seedcli.specs import ActionSpec, ArraySpec, EnvSpec


class PlainSpaces:
    """Reads the observations of plain environments and writes actions for them.

    Args:
        spec: of the environment.
        observations, actions: its spaces.

    Attributes:
        spec: as given.
    """

    def __init__(self, spec: EnvSpec, observations: Observations, actions: Actions) -> None:
        self.spec = spec
        self._observations = observations
        self._actions = actions

    def read(self, observation: Any) -> tuple[Any, int | None]:
        """Read the observation of one environment, or of a batch, which has one more axis in front.

        Of a Dict, parts that the specification leaves out may be missing and are ignored; those of inner Dicts
        may also be called "outer/inner".

        Args:
            observation: as `reset` and `step` of the environment, or of a vector of them, return it.

        Returns:
            Arrays [N, ...] as in the specification, a dict if it has names, and N; None for one environment, of which
            the arrays are [1, ...].

        Raises:
            UsageError: names the part, what it must be and what it is.
        """
        values = {name: _as_array(leaf, value) for name, leaf, value in self._parts(observation)}
        batch = self._batch_of(values)

        def read(name: str, array: ArraySpec) -> npt.NDArray[Any]:
            rows = values[name] if batch is not None else values[name][np.newaxis]
            out = np.empty((len(rows), *array.shape), array.dtype)
            _read_leaf(self._observations.leaves[name], rows, out, batch is not None)
            return out

        spec = self.spec.observation
        if isinstance(spec, Mapping):
            return {name: read(name, array) for name, array in spec.items()}, batch
        return read("", spec), batch

    def _parts(self, observation: Any) -> Iterator[tuple[str, Leaf, Any]]:
        leaves = self._observations.leaves
        if "" in leaves:
            if isinstance(observation, Mapping):
                raise UsageError(f"the observation is a dict: it must be {_wanted(leaves[''])}")
            yield "", leaves[""], observation
            return
        listed = ", ".join(map(repr, sorted(leaves)))
        if not isinstance(observation, Mapping):
            raise UsageError(f"the observation is {type(observation).__name__}: it must be a dict of {listed}")
        found = dict(_flat(observation))
        for name, leaf in leaves.items():
            if name not in found:
                raise UsageError(f"the observation has no {name!r}: it must be a dict of {listed}")
            yield name, leaf, found[name]

    def _batch_of(self, values: Mapping[str, npt.NDArray[Any]]) -> int | None:
        """The number of environments; None for one without an axis for it."""
        sizes: dict[str, int | None] = {}
        for name, leaf in self._observations.leaves.items():
            shape = values[name].shape
            if shape != leaf.spec.shape and (shape[1:] != leaf.spec.shape or not shape or shape[0] == 0):
                raise UsageError(f"the {leaf.what} has shape {shape}: it must be {_wanted(leaf)}")
            sizes[name] = None if shape == leaf.spec.shape else shape[0]
        first, size = next(iter(sizes.items()))
        for name, other in sizes.items():
            if other != size:
                raise UsageError(
                    f"the observation {first!r} is for {_counted(size)} and {name!r} for {_counted(other)}: all parts "
                    "must be for the same environments"
                )
        return size

    def write(self, actions: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Turn agents' actions into those that the environments' `step` takes.

        Args:
            actions: [N, *spec.action.array.shape] in its dtype.

        Returns:
            [N, ...] in shape and type of the action space; see `unbatched` for one environment.

        Raises:
            EnvironmentFailed: an action is non-finite.
        """
        return self._actions.read(actions, len(actions))

    def from_native(self, native: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Turn environments' actions [N, ...] into agents', the inverse of `write`: [N, *spec.action.array.shape]."""
        units, array = self.units, self.spec.action.array
        flat = native.reshape(len(native), -1)
        if array.categories:
            return (flat - units.offset).astype(array.dtype).reshape(len(native), *array.shape)
        # Equal bounds have scale 0.
        scale = np.where(units.scale == 0.0, 1.0, units.scale)
        return ((flat - units.offset) / scale).astype(array.dtype)

    @property
    def units(self) -> ActionUnits:
        """The conversion of agents' actions to the environments'."""
        return self._actions.units

    @property
    def forms(self) -> dict[str, Any]:
        """What `spaces_from` needs besides the specification, JSON-serialisable.

        "observations": name of the array ("" for a single one) → its "dtype" in the environment and the "start" of its
        categories, a list in C order; "action": "shape", "dtype", and "low" and "high", lists in C order with null for
        no bound.
        """
        units = self.units
        return {
            "observations": {
                name: {"dtype": leaf.dtype, "start": leaf.start} for name, leaf in self._observations.leaves.items()
            },
            "action": {
                "shape": list(units.shape),
                "dtype": units.dtype,
                "low": [x if np.isfinite(x) else None for x in units.low.tolist()],
                "high": [x if np.isfinite(x) else None for x in units.high.tolist()],
            },
        }


def unbatched(native: npt.NDArray[Any]) -> Any:
    """The action of one environment out of actions [1, ...]: an int for Discrete, else an array."""
    categorical = native.dtype.kind in "iu" and native.ndim == 1
    return int(native[0]) if categorical else np.asarray(native[0])


def spaces_from(spec: EnvSpec, forms: Mapping[str, Any]) -> PlainSpaces:
    """The spaces of a specification whose `PlainSpaces.forms` were kept; no environment is built.

    Args:
        spec: the specification.
        forms: of the spaces it belongs to.

    Raises:
        KeyError, TypeError, ValueError, UsageError: the forms are not those of this specification.
    """
    leaves = {
        name: _space_of_form(spec.arrays[name or "observation"], form) for name, form in forms["observations"].items()
    }
    single = not isinstance(spec.observation, Mapping)
    if set(leaves) != ({""} if single else set(spec.arrays)):
        raise ValueError(f"forms of {sorted(leaves)} for observations {sorted(spec.arrays)}")
    observations = Observations(leaves[""] if single else Dict(leaves), spec.name)
    actions = Actions(_action_space_of_form(spec.action, forms["action"]), spec.name)
    fits = all(
        leaf.spec.shape == spec.arrays[name or "observation"].shape for name, leaf in observations.leaves.items()
    )
    if not fits or actions.spec != spec.action:
        raise ValueError("forms of another specification")
    return PlainSpaces(spec, observations, actions)


def _space_of_form(array: ArraySpec, form: Mapping[str, Any]) -> Space[Any]:
    if array.categories:
        start = np.array(form["start"], np.int64)
        if not array.shape:
            return Discrete(array.categories[0], start=int(start[0]))
        return MultiDiscrete(np.array(array.categories).reshape(array.shape), start=start.reshape(array.shape))
    if array.dtype == "bool" and form["dtype"] != "bool":
        return MultiBinary(array.shape)
    dtype = np.dtype(form["dtype"])
    if dtype.kind == "b":
        return Box(0, 1, array.shape, np.bool_)
    limits: Any = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
    return Box(limits.min, limits.max, array.shape, dtype.type)


def _action_space_of_form(action: ActionSpec, form: Mapping[str, Any]) -> Space[Any]:
    shape = tuple(form["shape"])
    if not action.size:
        start = np.array(form["low"], np.int64)
        if not shape:
            return Discrete(action.categories[0], start=int(start[0]))
        return MultiDiscrete(np.array(action.categories).reshape(shape), start=start.reshape(shape))
    low = np.array([-np.inf if x is None else x for x in form["low"]], form["dtype"])
    high = np.array([np.inf if x is None else x for x in form["high"]], form["dtype"])
    return Box(low.reshape(shape), high.reshape(shape), shape, np.dtype(form["dtype"]).type)


def spaces_of(spec: EnvSpec) -> PlainSpaces:
    """The same for a family whose environments take and give the arrays of their specification."""
    observation = spec.observation
    space: Space[Any]
    if isinstance(observation, Mapping):
        space = Dict({name: _space(array) for name, array in observation.items()})
    else:
        space = _space(observation)
    return PlainSpaces(spec, Observations(space, spec.name), Actions(_action_space(spec.action), spec.name))


def _space(array: ArraySpec) -> Space[Any]:
    dtype = "int8" if array.dtype == "bool" else array.dtype  # MultiBinary's
    return _space_of_form(array, {"dtype": dtype, "start": [0] * len(array.categories)})


def _action_space(action: ActionSpec) -> Space[Any]:
    if not action.size:
        return _space(action.array)
    high = np.ones(action.size, np.float32)
    high[list(action.unbounded)] = np.inf
    return Box(-high, high, dtype=np.float32)


def _flat(observation: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
    """The parts of nested dicts by name: "outer/inner"."""
    for key, value in observation.items():
        if isinstance(value, Mapping):
            yield from ((f"{key}/{inner}", part) for inner, part in _flat(value))
        else:
            yield str(key), value


def _as_array(leaf: Leaf, value: Any) -> npt.NDArray[Any]:
    try:
        return np.asarray(value)
    except ValueError as error:  # of parts of different lengths
        raise UsageError(f"the {leaf.what} is not an array: it must be {_wanted(leaf)}") from error


def _read_leaf(leaf: Leaf, rows: npt.NDArray[Any], out: npt.NDArray[Any], batch: bool) -> None:
    """Write values [N, ...] of a space into an array of the specification."""
    try:
        leaf.write(list(rows), out)
    except Exception as error:
        for index, row in enumerate(rows):
            where = f"row {index} of the batch holds" if batch else "the policy was given"
            if wrong := leaf.difference(row):
                raise UsageError(f"{where} {wrong}") from error
            if out.dtype.kind == "f" and not np.isfinite(out[index]).all():
                raise UsageError(f"{where} the {leaf.what} with a number that is not a finite {out.dtype}") from error
        raise


def _wanted(leaf: Leaf) -> str:
    shape = leaf.spec.shape
    batch = f"(N, {', '.join(map(str, shape))})" if shape else "(N,)"
    return f"of shape {shape} and type {leaf.dtype}, or {batch} for a batch of N environments"


def _counted(size: int | None) -> str:
    return "one environment" if size is None else f"a batch of {size}"
