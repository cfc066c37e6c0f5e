"""A double of the module `deepmind_lab`, as strict as the real one, and the fixture that installs it.

It accepts, refuses and returns the same as python/dmlab_module.c of github.com/google-deepmind/lab, and reproduces the
observed behaviour of the real module (commit b1db91af). The simulated world is simple: it has neither the renderer nor
the levels of the real module.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import json
import os
import shutil
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seedcli.config.sections import EnvironmentConfig
from seedcli.envs.dmlab.levels import DMLAB_30, DMLAB_30_TEST, FIRST_LEVELS
from tests.configs import env_config

HAS_LAB = importlib.util.find_spec("deepmind_lab") is not None

# A level of the first release and one with procedural maps; an episode of each lasts a second, 60 frames.
LEVEL, MAZE = "seekavoid_arena_01", "explore_goal_locations_small"
SECOND = {"episodeLengthSeconds": "1"}

_CONTROLS = [
    {"name": "LOOK_LEFT_RIGHT_PIXELS_PER_FRAME", "min": -512, "max": 512},
    {"name": "LOOK_DOWN_UP_PIXELS_PER_FRAME", "min": -512, "max": 512},
    {"name": "STRAFE_LEFT_RIGHT", "min": -1, "max": 1},
    {"name": "MOVE_BACK_FORWARD", "min": -1, "max": 1},
    {"name": "FIRE", "min": 0, "max": 1},
    {"name": "JUMP", "min": 0, "max": 1},
    {"name": "CROUCH", "min": 0, "max": 1},
]
_COLORS = ("red", "green", "blue", "black")
# Settings of the engine, and of levels.
_SETTINGS = set(
    "width height fps logLevel appendCommand mixerSeed allowHoldOutLevels episodeLengthSeconds datasetPath "
    "botCount gadgetSelect gadgetSwitch".split()
)
_UNKNOWN_CLOCK = "tests/"  # levels that ignore episodeLengthSeconds
_FIRST_PORT = 27960
# The doubles of deepmind_lab and of dm_env, which it imports. The real dm_env, which football's engine imports too, is
# not replaced.
MODULES = [name for name in ("dm_env", "deepmind_lab") if name == "deepmind_lab" or not importlib.util.find_spec(name)]
MODULE_PATH = os.pathsep.join(str(Path(__file__).parent / f"{name}_module") for name in MODULES)
ROOT = Path(__file__).parents[3]
# Environment variables: how long a map takes to compile; a file for the level and settings of each instance.
COMPILE_SECONDS, LOG = "LAB_DOUBLE_COMPILE_SECONDS", "LAB_DOUBLE_LOG"
# Levels whose reset ends the process: the map is missing, or the script has an error.
EXITS, ABORTS = "tests/missing_map", "tests/script_error"
_LEVELS = {f"contributed/dmlab30/{level}" for level in (*DMLAB_30, *DMLAB_30_TEST)} | set(FIRST_LEVELS)


class Lab:
    """A walk on a plane. Each frame in which the player moves forward gives reward 1/64, one in which it fires 1.

    Episodes end by the clock, up to seven frames early, so that some end in the middle of a step. A level of
    DMLab-30 compiles a map, of one of three keys, on every reset, unless the cache holds it; meanwhile it holds the
    interpreter's lock. An episode depends on the seed, its number, and how often this instance has been reset. Each
    instance has a temporary folder and, unless the settings disable them, two UDP sockets. It kills a process that has
    imported TensorFlow.

    Attributes:
        made: every instance, in order of creation.
        calls: the calls of each, as (name, arguments).
        fail: name of the calls that fail, set by a test.
    """

    made: list[Lab] = []
    crashes_beside_tensorflow = True

    def __init__(
        self,
        level: str,
        observations: list[str],
        config: dict[str, str] | None = None,
        renderer: str = "software",
        level_cache: Any = None,
    ) -> None:
        if not isinstance(level, str) or not isinstance(renderer, str):
            raise TypeError("argument must be str")
        if type(observations) is not list:
            raise TypeError(f"argument 2 must be list, not {type(observations).__name__}")
        if config is not None and type(config) is not dict:
            raise TypeError(f"argument 3 must be dict, not {type(config).__name__}")
        if renderer not in ("software", "hardware"):
            raise RuntimeError(f'Failed to set renderer must be "hardware" or "software" actual "{renderer}"!')
        for key, value in (config or {}).items():
            if not isinstance(key, str) or not isinstance(value, str):
                raise TypeError("bad argument type for built-in operation")
            if key in ("width", "height") and int(value) % 4:
                raise RuntimeError(f"Failed to apply setting '{key} = {value}' - \"must be a multiple of 4\"")
            if key not in _SETTINGS:
                raise RuntimeError(f'Failed to init environment - "Invalid setting: "{key}""')
        if level not in _LEVELS and not level.startswith("tests/"):
            raise RuntimeError(f"Failed to init environment - \"Level not found: '{level}'\"")
        self.level, self.settings, self.renderer = level, dict(config or {}), renderer
        if level.endswith("_test") and "dmlab30" in level and self.settings.get("allowHoldOutLevels") != "true":
            raise RuntimeError('Failed to init environment - "This level must only be used during evaluation."')
        for name in observations:
            if name not in ("RGB_INTERLEAVED", "INSTR", "VEL.TRANS"):
                raise ValueError(f"Unknown observation '{name}'.")
        self.observation_names = observations
        if "tensorflow" in sys.modules and self.crashes_beside_tensorflow:
            os.kill(os.getpid(), 11)
        self._sockets = [] if "+set net_enabled 0" in self.settings.get("appendCommand", "") else _listen()
        self._folder = tempfile.mkdtemp(prefix="dmlab_temp_folder_", dir=os.environ.get("TMPDIR", "/tmp"))
        self._resets = 0
        self._cache = level_cache
        self._status = "uninitialized"
        self._episode = 0
        self.calls: list[tuple[str, Any]] = []
        self.fail: str | None = None
        Lab.made.append(self)
        if LOG in os.environ:
            with open(os.environ[LOG], "a") as log:
                log.write(json.dumps([level, self.settings]) + "\n")

    def action_spec(self) -> list[dict[str, Any]]:
        extra = [{"name": "SWITCH_GADGET", "min": -1, "max": 1}]
        return _CONTROLS + (extra if self.settings.get("gadgetSwitch") == "true" else [])

    def reset(self, episode: int = -1, seed: int | None = None) -> bool:
        if not isinstance(episode, int):
            raise TypeError("'episode' must be int")
        if seed is not None and not isinstance(seed, int):  # NumPy's integers are refused
            raise ValueError(f"'seed' must be int or None, was '{type(seed).__name__}'.")
        if self._status == "closed":
            raise RuntimeError("the context was released")  # the real one crashes
        self._called("reset", (episode, seed))
        if self.level == EXITS:
            os._exit(1)
        if self.level == ABORTS:
            os.abort()
        if self.level.endswith("psychlab_continuous_recognition") and "datasetPath" not in self.settings:
            raise RuntimeError('Failed to start environment - "datasetPath is not set"')
        if episode >= 0:
            self._episode = episode
        seed = seed if seed is not None else int.from_bytes(os.urandom(4), "little")
        mixed = [seed % 2**32, int(self.settings.get("mixerSeed", "0"))]
        self._random = np.random.default_rng([*mixed, self._episode, self._resets, *self.level.encode()])
        self._resets += 1
        self._frames = 0
        clock = {} if self.level.startswith(_UNKNOWN_CLOCK) else self.settings
        seconds = float(clock.get("episodeLengthSeconds", "90"))
        self._length = int(seconds * int(self.settings.get("fps", "60"))) - int(self._random.integers(8))
        self._position, self._angle = self._random.uniform(size=2), float(self._random.uniform(0, 360))
        self._texture = self._random.integers(64, 256, (8, 8, 3))
        self._words = [str(self._random.choice(_COLORS)) for _ in range(2)]
        if "dmlab30" in self.level:
            self._compile(f"map {self.level} {seed % 3}")
        # Levels write their log to C's stdout, even where Python's is redirected.
        os.write(1, b"I levels/seekavoid_arena_01.lua:1] Starting episode\n")
        self._episode += 1
        self._status = "running"
        return True

    def _compile(self, key: str) -> None:
        path = Path(self._folder) / "map.pk3"
        fetched = self._cache is not None and self._cache.fetch(key, str(path))
        self.calls.append(("fetch", fetched))
        if fetched:
            assert path.read_bytes() == key.encode() * 1000
            return
        ctypes.PyDLL(None).usleep(int(1e6 * float(os.environ.get(COMPILE_SECONDS, "0"))))
        path.write_bytes(key.encode() * 1000)
        if self._cache is not None:
            self._cache.write(key, str(path))

    def is_running(self) -> bool:
        return self._status == "running"

    def num_steps(self) -> int:
        return self._frames

    def step(self, action: Any, num_steps: int = 1) -> float:
        if not isinstance(action, np.ndarray):
            raise TypeError(f"argument 1 must be numpy.ndarray, not {type(action).__name__}")
        if not isinstance(num_steps, int):
            raise TypeError("'num_steps' must be int")
        if self._status != "running":
            raise RuntimeError("Environment in wrong status to advance.")
        if action.shape != (len(self.action_spec()),):
            raise ValueError(f"action must have shape ({len(self.action_spec())})")
        if action.dtype != np.intc:
            raise ValueError("action must have dtype np.intc")
        self._called("step", (action.tolist(), num_steps))
        reward = 0.0
        for _ in range(num_steps):
            self._angle += action[0] / 10
            self._position = self._position + 0.01 * action[3] + 0.003 * action[2]
            reward += (action[3] == 1) / 64 + float(action[4])
            self._frames += 1
            if self._frames == self._length:
                self._status = "terminated"
                break
        return reward

    def observations(self) -> dict[str, Any]:
        if self._status != "running":
            raise RuntimeError("Environment in wrong status for call to observations()")
        self._called("observations", None)
        found: dict[str, Any] = {}
        for name in self.observation_names:
            if name == "RGB_INTERLEAVED":
                found[name] = self._draw()
            elif name == "INSTR":
                found[name] = f"Pick the {self._words[0]} object in the {self._words[1]} room."
            else:
                found[name] = np.zeros(3)
        return found

    def _draw(self) -> np.ndarray:
        height, width = int(self.settings.get("height", "240")), int(self.settings.get("width", "320"))
        rows = (np.arange(height)[:, None] // 8 + int(40 * self._position[0])) % 8
        columns = (np.arange(width)[None] // 8 + int(self._angle)) % 8
        picture = self._texture[rows, columns].astype(np.uint8)
        picture[0, 0] = self._frames % 256  # consecutive frames differ
        return picture

    def close(self) -> bool:
        was_open = self._status != "closed"
        self._status = "closed"
        while self._sockets:
            self._sockets.pop().close()
        shutil.rmtree(self._folder, ignore_errors=True)
        return was_open

    def _called(self, name: str, arguments: Any) -> None:
        self.calls.append((name, arguments))
        if self.fail == name:
            raise ValueError(f'Failed to {name} environment "script error:\n[string "x.lua"]:12"')


def _listen() -> list[socket.socket]:
    """The engine's two sockets, on the first free port."""
    for port in range(_FIRST_PORT, 2**16):
        sockets: list[socket.socket] = []
        with contextlib.suppress(OSError):
            for family, host in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
                sockets.append(socket.socket(family, socket.SOCK_DGRAM))
                if family == socket.AF_INET6:
                    sockets[-1].setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                sockets[-1].bind((host, port))
            return sockets
        for each in sockets:
            each.close()
    raise RuntimeError("no free port")


def lab_config(level: str = LEVEL, **fields: Any) -> EnvironmentConfig:
    """A level with episodes of a second and small pictures."""
    fields = {"kwargs": SECOND, "height": 24, "width": 32, "level_cache": "", **fields}
    return env_config(family="dmlab", id=level, **fields)


def install(monkeypatch: pytest.MonkeyPatch, folder: Path) -> type[Lab]:
    """Replace the module, installed or not, by the double, in this process and in those that it starts.

    Temporary files are in `folder`. In this process the double works even if TensorFlow is loaded.
    """
    for path in MODULE_PATH.split(os.pathsep):
        monkeypatch.syspath_prepend(path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([MODULE_PATH, str(ROOT), os.environ.get("PYTHONPATH", "")]))
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
        module = importlib.import_module(name)
        del sys.modules[name]  # so that the end of the test removes it
        monkeypatch.setitem(sys.modules, name, module)
    scratch = folder / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    monkeypatch.setattr(Lab, "made", [])
    monkeypatch.setattr(Lab, "crashes_beside_tensorflow", False)
    return Lab


@pytest.fixture
def lab_double(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> type[Lab]:
    """The double in place of the real module."""
    return install(monkeypatch, tmp_path)


@pytest.fixture
def lab(request: pytest.FixtureRequest) -> None:
    """The real module if it is installed, else the double."""
    if not HAS_LAB:
        request.getfixturevalue("lab_double")
