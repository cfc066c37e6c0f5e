"""A model file's description of itself: stored in the file as JSON, and validated when it is read."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from seedcli.envs.gymnasium.plain import PlainSpaces, spaces_from
from seedcli.errors import CheckpointError, SeedError
from seedcli.specs import EnvSpec

ACTION, GREEDY_ACTION = "action", "greedy_action"

_Size = Annotated[int, Field(ge=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Tensor(_Strict):
    """An input or an output.

    Attributes:
        name: in the file.
        dtype: NumPy's name of the element type.
        shape: of one row; in the file the batch axis comes first.
        meaning: one line for a reader.
    """

    name: str
    dtype: str
    shape: tuple[_Size, ...]
    meaning: str


class Input(Tensor):
    """An input.

    Attributes:
        kind: what it is.
        of: name of the observation's array, or of the state's; "" for others.
    """

    kind: Literal["observation", "reward", "first", "state", "noise"]
    of: str = ""


class Output(Tensor):
    """An output.

    Attributes:
        kind: an action, a detail of it, or the state after it.
        of: the name of an action or of a detail as in `seedcli.Policy.step`, or of the state's array as in `Input`.
    """

    kind: Literal["action", "detail", "state"]
    of: str


class Description(_Strict):
    """The description of a model file.

    Attributes:
        format: version of this description.
        seedcli: version of the package that wrote it.
        greedy: actions are greedy; False: sampled with the numbers of the input "noise".
        batch: environments answered at once; None: any number.
        env_steps: environment steps of training.
        config: the sections run, environment, agent and training of the run's configuration.
        spec: the environment, as `EnvSpec.to_dict` gives it.
        forms: its plain observations and actions, as `PlainSpaces.forms` gives them.
        inputs, outputs: of the function, in no particular order.
    """

    format: Literal[1] = 1
    seedcli: str
    greedy: bool
    batch: _Size | None
    env_steps: Annotated[int, Field(ge=0)]
    config: dict[str, dict[str, Any]]
    spec: dict[str, Any]
    forms: dict[str, Any]
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]

    @cached_property
    def env_spec(self) -> EnvSpec:
        """The environment."""
        return EnvSpec.from_dict(self.spec)

    @cached_property
    def spaces(self) -> PlainSpaces:
        """Its plain observations and actions."""
        return spaces_from(self.env_spec, self.forms)

    @model_validator(mode="after")
    def _check_that_parts_agree(self) -> Description:
        try:
            spaces = self.spaces
        except (KeyError, TypeError, IndexError, SeedError) as error:
            raise ValueError(f"forms: {error}") from error
        if {each.of for each in self.inputs if each.kind == "observation"} != set(spaces.spec.arrays):
            raise ValueError("inputs: other observations than those of the environment")
        states = [{each.of for each in each_side if each.kind == "state"} for each_side in (self.inputs, self.outputs)]
        if states[0] != states[1]:
            raise ValueError("outputs: another state than among the inputs")
        if ACTION not in {each.of for each in self.outputs if each.kind == "action"}:
            raise ValueError("outputs: no action")
        if "family" not in self.config.get("environment", {}):
            raise ValueError("config: no environment.family")
        return self

    def to_json(self) -> str:
        """The text kept in a file."""
        return self.model_dump_json()


def read_description(path: object, text: str | bytes) -> Description:
    """The description of a model file.

    Args:
        path: of the file, for errors.
        text: what the file holds.

    Raises:
        CheckpointError: it is not a description, or one of another version.
    """
    try:
        return Description.model_validate_json(text)
    except ValidationError as error:
        fault: Mapping[str, Any] = error.errors()[0]
        where = ".".join(map(str, fault["loc"]))
        if where == "format":
            raise CheckpointError(
                f"{path} has a description of format {fault['input']!r:.20} and this version of seedcli reads "
                "format 1: use the version that exported it, or export the run again"
            ) from error
        what = f"{where}: {fault['msg']}" if where else fault["msg"]
        raise CheckpointError(
            f"{path} cannot be used: its description is damaged ({what.replace('Value error, ', '')}); export the run "
            "again"
        ) from error
