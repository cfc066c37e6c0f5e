"""Makes models of a checkpoint."""

from __future__ import annotations

from pathlib import Path

from seedcli import __version__
from seedcli.config.schema import Config
from seedcli.envs.placement import plain_spaces
from seedcli.errors import CheckpointError, SeedError
from seedcli.export.check import Checked, compare
from seedcli.export.function import Acting, ActingFunction
from seedcli.export.writing import WRITERS
from seedcli.inference.device_memory import building
from seedcli.models.description import Description
from seedcli.models.formats import FORMATS
from seedcli.models.runtimes import Model, open_model
from seedcli.roles.trained_agent import TrainedAgent
from seedcli.training.checkpoint_files import Checkpoint, check_environment

_SECTIONS = {"run", "environment", "agent", "training"}  # these describe how the agent acts and was trained


def describe(function: ActingFunction, config: Config, env_steps: int) -> Description:
    """The description in a function's models.

    Args:
        function: the function.
        config: of the run.
        env_steps: environment steps of training.
    """
    acting, dump = function.acting, config.model_dump(mode="json", by_alias=True)
    return Description(
        seedcli=__version__,
        greedy=acting.greedy,
        batch=acting.batch,
        env_steps=env_steps,
        config={name: values for name, values in dump.items() if name in _SECTIONS},
        spec=acting.spaces.spec.to_dict(),
        forms=acting.spaces.forms,
        inputs=tuple(function.inputs),
        outputs=tuple(function.outputs),
    )


class Exporter:
    """The acting function of a checkpoint's agent, to be written in any format.

    Args:
        checkpoint, config: of the run.
        greedy: greedy actions instead of sampled ones.
        batch: environments answered at once; None: any number.

    Attributes:
        description: the description in its models.

    Raises:
        CheckpointError: the checkpoint belongs to another agent or environment.
        UsageError: the agent samples in a way that cannot be exported, or two of its outputs have the same name.
        SimulatorMissing, EnvironmentFailed: the environment cannot be built.
        SeedError: the device is out of memory.
    """

    def __init__(self, checkpoint: Checkpoint, config: Config, *, greedy: bool, batch: int | None) -> None:
        self._environment = config.environment
        spaces = plain_spaces(config.environment, checkpoint.spec)
        check_environment(checkpoint, checkpoint.spec, spaces.spec)
        with building("while building the policy", "stop other programs that use the device"):
            trained = TrainedAgent(checkpoint, config, seed=config.run.seed)
            self._function = ActingFunction(Acting(trained.agent, trained.role, spaces, greedy, batch))
        self.description = describe(self._function, config, checkpoint.env_steps)

    def write(self, path: Path, format_name: str) -> Model:
        """Write a model and load it.

        Raises:
            SeedError: names an operation that the format lacks, or says why the runtime refuses the model.
            OSError: the file cannot be written.
        """
        WRITERS[format_name](self._function, self.description, path)
        try:
            return open_model(path)
        except CheckpointError as error:
            raise SeedError(
                f"{FORMATS[format_name].runtime} cannot run the agent's act: {error.__cause__ or error}".splitlines()[0]
                + "; write it with other operations, or use --format savedmodel"
            ) from error

    def check(self, model: Model) -> Checked:
        """Compare a model with the original on real observations; see `check.compare`."""
        return compare(self._function, model, self._environment)
