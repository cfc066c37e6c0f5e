"""The interfaces of environments: families, and vector environments in next-step autoreset mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from seedcli.config.sections import EnvironmentConfig
from seedcli.specs import EnvSpec, Rows


class VectorEnv(Protocol):
    """E environments stepped in lock-step.

    Next-step autoreset: the record after a final one (terminated or truncated) is the first of a new
    episode, with reward 0 and both flags 0; the action given on the final record is ignored.

    Attributes:
        spec: the specification of one environment.
        num_envs: E.
    """

    spec: EnvSpec
    num_envs: int

    def reset(self, seed: int, out: Rows) -> None:
        """Seed every environment, start new episodes, write the first records.

        Seeds are consecutive from `seed`, unless the environments share one random generator.
        """

    def step(self, actions: npt.NDArray[Any], out: Rows) -> None:
        """Take actions [E, *spec.action.array.shape] in its dtype and write the next records into `out`.

        Box actions are in units of the space (see `ActionSpec`): the adapter clips and rescales them.

        Raises:
            EnvironmentFailed: the environment broke, or returned something outside its specification.
        """

    def render(self) -> npt.NDArray[np.uint8]:
        """The first environment as an RGB picture [height, width, 3]; only where built with rendering."""

    def close(self) -> None:
        """Free what the environments hold; safe to call twice."""


class BareGroup(NamedTuple):
    """A library's own vector environment, for `seed bench training`.

    Attributes:
        env: already reset; has `step` or, if `overlapped`, `send` and `recv`; and `close`.
        sample: draws actions for all of its environments.
        overlapped: it steps in its own threads while another group is served.
    """

    env: Any
    sample: Callable[[], Any]
    overlapped: bool = False


class Family:
    """A family of environments: how one is built from its configuration, and what else depends on the family.

    Subclass it, set `Config` and implement `make`; everything else has a default. Constructing a family and the module
    that holds it must not import a simulator.

    Attributes:
        Config: the keys of [environment], a subclass of `EnvironmentConfig`.
        install: how its simulator is obtained, the end of a sentence.
        preset: a preset that suits it, for suggestions; "": none.
        isolation: when an environment needs a process without TensorFlow in it: "never", only for "rendering", or
            "always".
        may_end_process: whether its simulator may end the process it is in (exit, abort): actors then build it in a
            separate process, so that its end counts as a failure of environments.
        clock_terminates: whether time limits terminate episodes, because the simulator does not distinguish them from
            other ends.
        keeps_finished_episodes: whether the library frees the memory of finished episodes only when its process ends.
        adapts_gymnasium: whether its vector environments are those of `envs.gymnasium`, so that plain environments made
            by `gymnasium.make` give and take other arrays than its specifications say.
        library: name of the library that `make_bare` steps; "": there is none.
        simulator: path of attributes from a vector environment to the library's, for `seed bench actor`; empty: it
            cannot be timed separately.
    """

    Config: ClassVar[type[EnvironmentConfig]] = EnvironmentConfig
    install: ClassVar[str] = "install its package"
    preset: ClassVar[str] = ""
    isolation: ClassVar[Literal["never", "rendering", "always"]] = "rendering"
    may_end_process: ClassVar[bool] = False
    clock_terminates: ClassVar[bool] = False
    keeps_finished_episodes: ClassVar[bool] = False
    adapts_gymnasium: ClassVar[bool] = False
    library: ClassVar[str] = ""
    simulator: ClassVar[tuple[str, ...]] = ()

    def make(self, config: Any, num_envs: int, *, render: bool = False, threads: int = 0) -> VectorEnv:
        """Build a vector environment.

        Args:
            config: an instance of `Config`.
            num_envs: E, at least 1.
            render: build it so that `render()` gives pictures of the first environment.
            threads: for libraries that step in threads of their own; 0: as many as this process has cores.

        Raises:
            ImportError: the simulator is not installed.
            UsageError: the configuration asks for something that does not exist or is not supported.
            EnvironmentFailed: the environment cannot be built.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement make")

    def check(self, config: Any, kwargs_source: str) -> None:
        """Refuse a name that is unknown without building anything; by default nothing is checked.

        Args:
            config: an instance of `Config`.
            kwargs_source: where `environment.kwargs` come from, for errors; only of families that have them.

        Raises:
            ImportError: the simulator is not installed, so nothing is checked.
            UsageError: names the nearest known names, or the value, its source and what to do.
        """

    def check_simulator(self, config: Any) -> bool:
        """Check, without building an environment, whether its library is installed here.

        Returns:
            True if it is; False, as by default, if one must be built to tell.

        Raises:
            ImportError, SimulatorMissing, UsageError, EnvironmentFailed: what is missing.
        """
        return False

    def expected_spec(self, config: Any) -> EnvSpec | None:
        """The specification that follows from the configuration alone; None: only the simulator has it."""
        return None

    def preset_for(self, config: Any) -> str:
        """The preset to suggest for one environment, by default `preset`."""
        return self.preset

    def frames_per_second(self, config: Any) -> float:
        """Pictures a second of a video that plays in the environment's own time, one per step."""
        return 30.0

    def counts_wins(self, config: Any, sees_rewards: bool) -> tuple[Any, bool]:
        """The configuration to evaluate with, and whether an episode is a match, won if its return is positive.

        Args:
            config: an instance of `Config`.
            sees_rewards: whether the network's inputs contain rewards, which must then be those of training.
        """
        return config, False

    def make_bare(self, config: Any, num_envs: int, threads: int, seed: int) -> BareGroup:
        """The library's own vector environment with the same settings, reset; only if `library` is not empty."""
        raise NotImplementedError
