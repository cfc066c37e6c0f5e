"""DeepMind Lab through its own Python module, `deepmind_lab`.

Facts about that module that this file builds on (python/dmlab_module.c of github.com/google-deepmind/lab): a setting
and its value are strings; an action is an int array [7] of exactly C's int; a seed is a Python int; `step` with
`num_steps` returns the sum of the rewards, and stops at the end of an episode; after that end there is no observation;
every array it returns is a fresh one; it holds the GIL while it simulates and while it compiles a map; each Lab of a
process loads its own library, so several can coexist; levels write their log to C's stdout. A seed determines the
episodes of a fresh Lab, but a later reset of the same Lab with the same seed begins elsewhere. A missing map ends the
process (exit status 1), an error in a level's script aborts it.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import importlib
import os
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from seedcli.envs.checks import check_actions
from seedcli.envs.dmlab.config import LabConfig
from seedcli.envs.dmlab.level_cache import open_level_cache
from seedcli.envs.dmlab.levels import check_level, lab_settings, level_path
from seedcli.errors import EnvironmentFailed, first_line
from seedcli.specs import ActionSpec, ArraySpec, EnvSpec, Rows

__all__ = ["ACTIONS", "INSTRUCTION_SIZE", "LabVectorEnv", "check_level", "hash_instruction"]

_CONTROLS = (
    "LOOK_LEFT_RIGHT_PIXELS_PER_FRAME",
    "LOOK_DOWN_UP_PIXELS_PER_FRAME",
    "STRAFE_LEFT_RIGHT",
    "MOVE_BACK_FORWARD",
    "FIRE",
    "JUMP",
    "CROUCH",
)

# The nine actions of IMPALA (Espeholt et al., arXiv 1802.01561, table D.2) and SEED RL, over those controls.
ACTIONS: npt.NDArray[np.intc] = np.array(
    [
        (0, 0, 0, 1, 0, 0, 0),  # forward
        (0, 0, 0, -1, 0, 0, 0),  # backward
        (0, 0, -1, 0, 0, 0, 0),  # strafe left
        (0, 0, 1, 0, 0, 0, 0),  # strafe right
        (-20, 0, 0, 0, 0, 0, 0),  # look left
        (20, 0, 0, 0, 0, 0, 0),  # look right
        (-20, 0, 0, 1, 0, 0, 0),  # forward and look left
        (20, 0, 0, 1, 0, 0, 0),  # forward and look right
        (0, 0, 0, 0, 1, 0, 0),  # fire
    ],
    np.intc,
)

INSTRUCTION_SIZE = 256

_FRAME, _INSTRUCTION = "RGB_INTERLEAVED", "INSTR"
_NONE = -1  # no environment
_SEEDS = 2**31  # an environment's own seed is an int32
_EPISODE_SEEDS = 2**31 - 1  # SEED RL draws an episode's seed below this

_libc = ctypes.CDLL(None)
_stdout_lock = threading.RLock()


@contextlib.contextmanager
def _stdout_is_stderr() -> Iterator[None]:
    """Redirect stdout, which is for results, to stderr for the simulator and the map compilers that it starts."""
    with _stdout_lock:  # otherwise a second thread would save, as stdout, the stderr of the first
        try:
            stdout = os.dup(1)
        except OSError:  # a process without a stdout
            yield
            return
        os.dup2(2, 1)
        try:
            yield
        finally:
            _libc.fflush(None)
            os.dup2(stdout, 1)
            os.close(stdout)


@functools.lru_cache(maxsize=4096)
def hash_instruction(text: str) -> npt.NDArray[np.float32]:
    """An instruction as a vector [256] float32 that does not depend on a vocabulary.

    Feature hashing (Weinberger et al., arXiv 0902.2206): each word, and each pair of neighbouring words, adds 1 or -1
    to one component. The pairs tell "the red hat in the blue room" from "the blue hat in the red room". Case and
    punctuation are ignored. An empty text is all zeros. The array is read-only.
    """
    words = "".join(char if char.isalnum() else " " for char in text.lower()).split()
    vector = np.zeros(INSTRUCTION_SIZE, np.float32)
    for feature in (*words, *(" ".join(pair) for pair in zip(words, words[1:], strict=False))):
        digest = int.from_bytes(hashlib.blake2b(feature.encode(), digest_size=8).digest(), "little")
        vector[(digest >> 1) % INSTRUCTION_SIZE] += 1 if digest & 1 else -1
    vector.flags.writeable = False
    return vector


class LabVectorEnv:
    """E simulators of one level, stepped one after the other.

    An observation is the picture [height, width, 3] uint8; with `instructions` "hashed" it is a dict of that picture,
    "frame", and of "instruction" [256] float32 (see `hash_instruction`). Rewards are the level's own, summed over the
    frames of a step, unclipped.

    Lab has no observation after the end of an episode, so the final record repeats the last one. This does not affect
    learning, because every end counts as a termination, as in IMPALA and SEED RL: Lab does not report why an episode
    ended.

    Environment i of seed s draws the seeds of its episodes from a RandomState seeded with (s + i) mod 2³¹, as SEED RL
    does. Episodes are numbered from 0 at each reset, because levels may use the number. Each reset but the first
    rebuilds the simulators, because only the episodes of a fresh one are reproducible; each time, about 5 file
    descriptors and 3 to 5 MiB are not released.

    Attributes:
        spec: named "dmlab/<level>"; `frames_per_step` is the number of frames an action is repeated.
        num_envs: E.
        current: [1] int32, the environment that is being reset or stepped, -1: none.
    """

    def __init__(self, config: LabConfig, num_envs: int, *, render: bool = False) -> None:
        """Start the simulators.

        Args:
            config: id, height, width, frame_skip, instructions, level_cache and renderer; `kwargs` are further
                settings of the simulator or the level.
            num_envs: E, at least 1.
            render: allow `render()`.

        Raises:
            ImportError: there is no module `deepmind_lab` on this machine.
            UsageError: an unknown level, or a field or setting that does not apply here.
            EnvironmentFailed: the simulator cannot load the level.
        """
        check_level(config.id)
        self._level = level_path(config.id)
        self._options = {
            "config": lab_settings(config),
            "renderer": config.renderer,
            "level_cache": open_level_cache(config.level_cache),
        }
        frame = ArraySpec((config.height, config.width, 3), "uint8")
        instruction = ArraySpec((INSTRUCTION_SIZE,), "float32")
        self._hashed = config.instructions == "hashed"
        self.num_envs = num_envs
        self.spec = EnvSpec(
            f"dmlab/{config.id}",
            {"frame": frame, "instruction": instruction} if self._hashed else frame,
            ActionSpec((len(ACTIONS),)),
            frames_per_step=config.frame_skip,
        )
        self._frame_shape = frame.shape
        self._rendering = render
        self._labs: list[Any] = []
        self._module = importlib.import_module("deepmind_lab")
        try:
            with _stdout_is_stderr():
                for _ in range(num_envs):
                    self._labs.append(self._build())
                controls = tuple(control["name"] for control in self._labs[0].action_spec())
        except BaseException as error:
            self.close()
            if not isinstance(error, Exception):
                raise
            remedy = "; remove it from environment.kwargs" if "Invalid setting" in str(error) else ""
            raise EnvironmentFailed(f"{self.spec.name} cannot be built: {first_line(error)}{remedy}") from error
        if controls != _CONTROLS:
            self.close()
            raise EnvironmentFailed(
                f"{self.spec.name} has the controls {', '.join(controls)} where {', '.join(_CONTROLS)} are expected; "
                "remove options that add controls from environment.kwargs"
            )
        # Of each environment: where its episodes' seeds come from, their number, the last picture and instruction,
        # and whether its episode is over.
        self._random = [np.random.RandomState(0) for _ in range(num_envs)]
        self._episode = [0] * num_envs
        self._seen: list[tuple[npt.NDArray[np.uint8], str] | None] = [None] * num_envs
        self._over = [False] * num_envs
        self._fresh = True
        self.current: npt.NDArray[np.int32] = np.full(1, _NONE, np.int32)

    def _build(self) -> Any:
        observations = [_FRAME, _INSTRUCTION] if self._hashed else [_FRAME]
        return self._module.Lab(self._level, observations, **self._options)

    def reset(self, seed: int, out: Rows) -> None:
        """Seed environment i with (seed + i) mod 2³¹, start new episodes, write their first records.

        Raises:
            EnvironmentFailed: as for `step`.
        """
        self._random = [np.random.RandomState((seed + i) % _SEEDS) for i in range(self.num_envs)]
        self._episode = [0] * self.num_envs
        out.reward[...] = 0
        out.terminated[...] = 0
        out.truncated[...] = 0
        with _stdout_is_stderr():
            for index in range(self.num_envs):
                with self._name_failures(index, "reset"):
                    if not self._fresh:
                        self._labs[index].close()
                        self._labs[index] = self._build()
                    self._begin(index)
                self._write(index, out)
        self._fresh = False

    def step(self, actions: npt.NDArray[np.int32], out: Rows) -> None:
        """Take actions [E] in 0 to 8 and write the next records into `out`.

        Raises:
            EnvironmentFailed: an action is out of range, the simulator failed, or it gave a picture of another shape.
                A non-finite reward is passed on: the learner drops the unroll that holds it.
        """
        check_actions(actions, self.num_envs, self.spec.action, self.spec.name)
        out.reward[...] = 0
        out.terminated[...] = 0
        out.truncated[...] = 0
        with _stdout_is_stderr(), np.errstate(over="ignore"):
            for index, action in enumerate(actions):
                if self._over[index]:
                    with self._name_failures(index, "reset"):
                        self._begin(index)
                else:
                    with self._name_failures(index, "step"):
                        lab = self._labs[index]
                        out.reward[index] = lab.step(ACTIONS[action], num_steps=self.spec.frames_per_step)
                        if lab.is_running():
                            self._observe(index)
                        else:
                            self._over[index] = True
                            out.terminated[index] = 1
                self._write(index, out)

    def _begin(self, index: int) -> None:
        seed = int(self._random[index].randint(_EPISODE_SEEDS))
        self._labs[index].reset(episode=self._episode[index], seed=seed)
        self._episode[index] += 1
        self._over[index] = False
        self._observe(index)

    def _observe(self, index: int) -> None:
        observations = self._labs[index].observations()
        frame = observations[_FRAME]
        if frame.shape != self._frame_shape or frame.dtype != np.uint8:
            raise EnvironmentFailed(
                f"environment {index} of {self.spec.name} returned a frame {frame.dtype} {list(frame.shape)} "
                f"where uint8 {list(self._frame_shape)} was requested"
            )
        self._seen[index] = frame, observations[_INSTRUCTION] if self._hashed else ""

    def _write(self, index: int, out: Rows) -> None:
        seen = self._seen[index]
        assert seen is not None
        frame, instruction = seen
        if self._hashed:
            out.observation["frame"][index] = frame
            out.observation["instruction"][index] = hash_instruction(instruction)
        else:
            out.observation[index] = frame

    @contextlib.contextmanager
    def _name_failures(self, index: int, where: str) -> Iterator[None]:
        """Turn what the simulator raises into a sentence that names the environment."""
        self.current[0] = index
        try:
            yield
            self.current[0] = _NONE
        except EnvironmentFailed:
            raise
        except Exception as error:
            raise EnvironmentFailed(
                f"environment {index} of {self.spec.name} failed in {where}: {first_line(error)}"
            ) from error

    def render(self) -> npt.NDArray[np.uint8]:
        """What the first environment observes, an RGB picture [height, width, 3] uint8.

        Raises:
            EnvironmentFailed: it was not built with `render`, or not yet reset.
        """
        if not self._rendering or self._seen[0] is None:
            raise EnvironmentFailed(f"{self.spec.name} has no picture; build it with render=True and reset it first")
        return self._seen[0][0]

    def close(self) -> None:
        """End the simulators; safe to call twice."""
        with _stdout_is_stderr():
            while self._labs:
                self._labs.pop().close()
