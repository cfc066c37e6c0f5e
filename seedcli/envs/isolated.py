"""A vector environment in a separate process without TensorFlow, for libraries that conflict with it.

MuJoCo draws through Mesa on machines without a GPU; Mesa's drivers bring an LLVM, TensorFlow brings another, and
whichever is loaded second finds the functions of the first, and dies. Football's engine keeps the memory of every match
it has played until its process ends.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import numpy.typing as npt

from seedcli.config.schema import make_environment_config
from seedcli.config.sections import EnvironmentConfig
from seedcli.envs.registry import create_env
from seedcli.errors import EnvironmentFailed, SeedError
from seedcli.specs import EnvSpec, RowLayout, Rows, aligned_empty

_ANSWER_SECONDS = 300.0  # an environment may have to be compiled first
_END_SECONDS = 10.0


class IsolatedEnv:
    """An `envs.base.VectorEnv` that lives in a process of its own.

    Args:
        config: the environment.
        num_envs: E.
        render: see `create_env`.

    Raises:
        SeedError: what `create_env` raised there.
        EnvironmentFailed: the process died.
    """

    def __init__(self, config: EnvironmentConfig, num_envs: int, *, render: bool = False) -> None:
        self.num_envs = num_envs
        self._name = f"{config.family}/{config.id}"
        context = multiprocessing.get_context("spawn")  # a fork would bring TensorFlow along
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(theirs, config.model_dump(), num_envs, render), daemon=True
        )
        self._process.start()
        theirs.close()
        try:
            self.spec = EnvSpec.from_dict(self._answer())
        except BaseException:
            self.close()
            raise
        self._layout = RowLayout(self.spec, num_envs)

    def _answer(self) -> Any:
        try:
            if not self._pipe.poll(_ANSWER_SECONDS):
                raise EnvironmentFailed(f"{self._name} has not answered for {_ANSWER_SECONDS:.0f} s in its own process")
            answer = self._pipe.recv()
        except (EOFError, ConnectionError) as error:
            self._process.join(_END_SECONDS)
            code = self._process.exitcode
            raise EnvironmentFailed(f"the process of {self._name} ended with status {code}") from error
        if isinstance(answer, SeedError):
            raise answer
        return answer

    def _ask(self, *request: Any) -> Any:
        with contextlib.suppress(ConnectionError):  # `_answer` says why it is gone
            self._pipe.send(request)
        return self._answer()

    def _write(self, row: bytes, out: Rows) -> None:
        steps = self._layout.views(np.frombuffer(row, np.uint8))
        if isinstance(steps.observation, dict):
            for name, array in steps.observation.items():
                out.observation[name][...] = array
        else:
            out.observation[...] = steps.observation
        out.reward[...], out.terminated[...], out.truncated[...] = steps.reward, steps.terminated, steps.truncated

    def reset(self, seed: int, out: Rows) -> None:
        self._write(self._ask("reset", seed), out)

    def step(self, actions: npt.NDArray[Any], out: Rows) -> None:
        self._write(self._ask("step", actions), out)

    def render(self) -> npt.NDArray[np.uint8]:
        picture: npt.NDArray[np.uint8] = self._ask("render")
        return picture

    def close(self) -> None:
        """End the process; safe to call twice."""
        self._pipe.close()
        self._process.join(_END_SECONDS)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def _serve(pipe: Connection, config: dict[str, Any], num_envs: int, render: bool) -> None:
    # Output of simulators goes to stderr: stdout is for results.
    os.dup2(2, 1)
    try:
        env = create_env(make_environment_config(config), num_envs, render=render)
    except SeedError as error:
        pipe.send(error)
        return
    layout = RowLayout(env.spec, num_envs)
    row = aligned_empty(layout.nbytes)
    row[:] = 0
    out = layout.views(row)
    pipe.send(env.spec.to_dict())
    with contextlib.suppress(EOFError, ConnectionError, KeyboardInterrupt):
        while True:
            what, *arguments = pipe.recv()
            try:
                if what == "render":
                    pipe.send(env.render())
                    continue
                env.reset(arguments[0], out) if what == "reset" else env.step(arguments[0], out)
                pipe.send(row.tobytes())
            except SeedError as error:
                pipe.send(error)
    env.close()
