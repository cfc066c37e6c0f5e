"""The speed of vector environments, one of the conformance checks."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from seedcli.envs.playing import MakeEnv, driving
from seedcli.specs import RowLayout, aligned_empty


class _Timed:
    """Measures the time that an environment's own code takes."""

    def __init__(self, env: Any) -> None:
        self._env = env
        self.seconds = 0.0

    def _time(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        begun = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            self.seconds += time.perf_counter() - begun

    def step(self, action: Any) -> Any:
        return self._time(self._env.step, action)

    def reset(self, **kwargs: Any) -> Any:
        return self._time(self._env.reset, **kwargs)

    def close(self) -> None:
        self._env.close()


def measure_speed(make: MakeEnv, seconds: float) -> tuple[Literal["ok"], str, dict[str, float | int | None]]:
    """Steps per second of one vector, and the share of the time outside its environments' own code."""
    envs = 8
    with driving(make, envs) as driver:
        env: Any = driver.env
        timed = [_Timed(each) for each in getattr(env, "envs", [])]
        if timed:
            env.envs[:] = timed
        out = RowLayout(env.spec, envs).views(aligned_empty(RowLayout(env.spec, envs).nbytes))
        random = np.random.default_rng(1)
        actions = [env.spec.action.sample(random, envs) for _ in range(64)]
        env.reset(1, out)
        before = sum(each.seconds for each in timed)
        begun = time.perf_counter()
        steps = 0
        while steps < 3 or time.perf_counter() - begun < seconds:
            env.step(actions[steps % 64], out)
            steps += 1
        took = time.perf_counter() - begun
        own = sum(each.seconds for each in timed) - before
        nbytes = env.spec.observation_bytes
    rate = steps * envs / took
    outside = 1 - own / took if timed else None
    share = "" if outside is None else f", {outside:.0%} of the time outside the environment's own code"
    value = {"steps_per_second": rate, "observation_bytes": nbytes, "share_outside": outside}
    return "ok", f"{rate:,.0f} steps/s in one process, {nbytes:,} bytes an observation{share}", value
