"""A vector environment in a separate process without TensorFlow, for libraries that conflict with it.

MuJoCo draws through Mesa on machines without a GPU. Mesa's drivers and TensorFlow each contain an LLVM; the one loaded
second calls functions of the first, and crashes. DeepMind Lab draws through Mesa too, and ends its process when a
map is missing. Football's engine keeps the memory of every match it has played until its process ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import tempfile
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import numpy.typing as npt

from seedcli.config.schema import make_environment_config
from seedcli.config.sections import EnvironmentConfig
from seedcli.envs.registry import create_env
from seedcli.envs.scratch import ScratchFolder
from seedcli.errors import EnvironmentFailed, SeedError
from seedcli.specs import EnvSpec, RowLayout, Rows, aligned_empty

_START_SECONDS = 60.0  # of the process, on a busy machine
_END_SECONDS = 10.0
_NONE = -1  # no environment


class IsolatedEnv:
    """An `envs.base.VectorEnv` in a separate process, with its own temporary folder.

    A call may take `environment.step_timeout`. The process is killed when the thread that built it ends.

    Args:
        config: the environment.
        num_envs: E.
        render, threads: see `create_env`.

    Attributes:
        notice: that of the environment, "" for none.

    Raises:
        SeedError: what `create_env` raised there.
        EnvironmentFailed: the process died, or did not answer.
    """

    def __init__(self, config: EnvironmentConfig, num_envs: int, *, render: bool = False, threads: int = 0) -> None:
        self.num_envs = num_envs
        self._name = f"{config.family}/{config.id}"
        self._limit = config.step_timeout
        self._busy = False  # in a call, so that it would not notice that the pipe is closed
        self._scratch = ScratchFolder()
        context = multiprocessing.get_context("spawn")  # a fork would copy TensorFlow
        self._pipe, theirs = context.Pipe()
        self._current = context.RawArray("i", [_NONE])
        arguments = (theirs, self._current, os.getpid(), str(self._scratch.path))
        self._process = context.Process(
            target=_serve, args=(*arguments, config.model_dump(), num_envs, render, threads), daemon=True
        )
        self._process.start()
        theirs.close()
        try:
            spec, self.notice = self._answer("while it was built", _START_SECONDS)
            self.spec = EnvSpec.from_dict(spec)
        except BaseException:
            self.close()
            raise
        layout = RowLayout(self.spec, num_envs)
        self._row = aligned_empty(layout.nbytes)
        self._rows = layout.views(self._row)

    def _answer(self, where: str, extra: float = 0.0) -> Any:
        self._busy = True
        try:
            if self._limit and not self._pipe.poll(self._limit + extra):
                raise EnvironmentFailed(
                    f"{self._name} has not returned for {self._limit:.0f} s {where} (environment.step_timeout)"
                )
            answer = self._pipe.recv()
        except (EOFError, ConnectionError) as error:
            raise self._died(where) from error
        self._busy = False
        if isinstance(answer, SeedError):
            raise answer
        return answer

    def _died(self, where: str) -> EnvironmentFailed:
        self._process.join(_END_SECONDS)
        code = self._process.exitcode
        status = f"{code} ({signal.Signals(-code).name})" if code is not None and code < 0 else f"{code}"
        index = self._current[0]
        which = f" of environment {index}" if index != _NONE else ""
        return EnvironmentFailed(f"the process of {self._name} ended with status {status} {where}{which}")

    def _request(self, what: str, *arguments: Any) -> Any:
        with contextlib.suppress(ConnectionError):  # `_answer` says why it is gone
            self._pipe.send((what, *arguments))
        return self._answer(f"in {what}")

    def _play(self, what: str, argument: Any, out: Rows) -> None:
        self._request(what, argument)
        try:
            self._pipe.recv_bytes_into(self._row)
        except (EOFError, ConnectionError) as error:
            raise self._died(f"in {what}") from error
        rows = self._rows
        if isinstance(rows.observation, dict):
            for name, array in rows.observation.items():
                out.observation[name][...] = array
        else:
            out.observation[...] = rows.observation
        out.reward[...], out.terminated[...], out.truncated[...] = rows.reward, rows.terminated, rows.truncated

    def reset(self, seed: int, out: Rows) -> None:
        self._play("reset", seed, out)

    def step(self, actions: npt.NDArray[Any], out: Rows) -> None:
        self._play("step", actions, out)

    def render(self) -> npt.NDArray[np.uint8]:
        picture: npt.NDArray[np.uint8] = self.attribute("render")
        return picture

    def attribute(self, name: str) -> Any:
        """Return an attribute of the environment, or what it returns if it is a method; it must be picklable."""
        return self._request(name)

    def close(self) -> None:
        """End the process; safe to call twice."""
        self._pipe.close()
        if self._busy:
            self._process.kill()
        self._process.join(_END_SECONDS)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._scratch.remove()


def _end_with(parent: int) -> None:
    """Have the kernel end this process, even inside a call, when its parent ends (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            os._exit(1)


def _serve(
    pipe: Connection,
    current: Any,
    parent: int,
    folder: str,
    config: dict[str, Any],
    num_envs: int,
    render: bool,
    threads: int,
) -> None:
    _end_with(parent)
    for number in (signal.SIGINT, signal.SIGHUP):  # from the terminal: the parent gets them too, and closes the pipe
        signal.signal(number, signal.SIG_IGN)
    # Output of simulators goes to stderr: stdout is for results.
    os.dup2(2, 1)
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    try:
        env: Any = create_env(make_environment_config(config), num_envs, render=render, threads=threads)
    except SeedError as error:
        pipe.send(error)
        return
    if hasattr(env, "current"):
        env.current = np.frombuffer(current, np.int32)
    layout = RowLayout(env.spec, num_envs)
    row = aligned_empty(layout.nbytes)
    row[:] = 0
    out = layout.views(row)
    pipe.send((env.spec.to_dict(), getattr(env, "notice", "")))
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            what, *arguments = pipe.recv()
            try:
                if what in ("reset", "step"):
                    getattr(env, what)(*arguments, out)
                    pipe.send(None)
                    pipe.send_bytes(row.data)
                else:
                    found = getattr(env, what)
                    pipe.send(found() if callable(found) else found)
            except SeedError as error:
                pipe.send(error)
    env.close()
