"""Which codecs an actor chooses, and that its encoded rows decode to its observations."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from seedcli.bench.actor import InstantLearner
from seedcli.bench.codecs import pays_below
from seedcli.config.schema import make_config
from seedcli.net.addresses import machine_id
from seedcli.net.codecs import CODECS, RowDecoder
from seedcli.net.frames import Kind, unpack_header
from seedcli.roles.actor.codec_choice import Cost, best, choose_codecs, measure_codec
from seedcli.roles.actor.session import ActorSession, Environments
from seedcli.specs import ActionSpec, ArraySpec, EnvSpec, RowLayout, Rows
from seedcli.telemetry.metrics import Profile

SPEC = EnvSpec(
    "test/choice",
    {
        "noise": ArraySpec((64, 64), "uint8"),
        "picture": ArraySpec((64, 64), "uint8"),
        "planes": ArraySpec((64, 64, 2), "uint8", binary=(0, 255)),
    },
    ActionSpec((3,)),
)


class Pictures:
    """Environments with one incompressible array and two compressible ones; each step takes `pause` seconds."""

    def __init__(self, num_envs: int, spec: EnvSpec = SPEC, pause: float = 0.0) -> None:
        self.spec, self.num_envs, self._pause = spec, num_envs, pause
        self.steps = self.resets = 0
        self._rng = np.random.default_rng(0)
        self.shown: list[Any] = []

    def _show(self, out: Rows) -> None:
        for name, array in out.observation.items():
            array[...] = self._rng.integers(0, 256, array.shape) if name == "noise" else 0
            if name != "noise":
                array[:, self.steps % 60] = 255
        out.reward[...], out.terminated[...], out.truncated[...] = self.steps, 0, 0
        self.shown.append({name: array.copy() for name, array in out.observation.items()})

    def reset(self, seed: int, out: Rows) -> None:
        self.resets += 1
        self.steps = 0
        self._show(out)

    def step(self, actions: npt.NDArray[Any], out: Rows) -> None:
        time.sleep(self._pause)
        self.steps += 1
        self._show(out)

    def close(self) -> None:
        pass


def test_each_array_gets_a_suitable_codec() -> None:
    chosen = choose_codecs(Pictures(4, pause=0.05), 1, CODECS)  # type: ignore[arg-type]
    assert chosen["noise"] == "raw" and chosen["picture"] == "zstd" and chosen["planes"] in ("zstd", "bits+zstd")


def test_only_offered_codecs_are_chosen() -> None:
    env: Any = Pictures(4, pause=0.05)
    assert choose_codecs(env, 1, ("raw", "bits")) == {"noise": "raw", "picture": "raw", "planes": "bits"}


def test_small_observations_are_sent_raw_without_sampling() -> None:
    env: Any = Pictures(2, EnvSpec("test/small", {"picture": ArraySpec((2047,), "uint8")}, ActionSpec((2,))))
    assert choose_codecs(env, 1, CODECS) == {"picture": "raw"}
    assert env.steps == env.resets == 0


def test_sampling_takes_a_bounded_time() -> None:
    env: Any = Pictures(1, pause=0.1)
    choose_codecs(env, 1, CODECS)
    assert 4 <= env.steps <= 6, "half a second, but at least four steps"


def test_the_smallest_within_the_budget_is_best() -> None:
    costs = [Cost("raw", 1000, 0.0, 0.0), Cost("bits", 125, 1e-6, 0.0), Cost("zstd", 50, 9e-6, 0.0)]
    assert best(costs, 1000, 1e-5).codec == "zstd"
    assert best(costs, 1000, 5e-6).codec == "bits"
    assert best(costs, 1000, 0.5e-6).codec == "raw"
    assert best([costs[0], Cost("zstd", 950, 0.0, 0.0)], 1000, 1.0).codec == "raw", "saves too little"


def test_a_codec_pays_below_the_link_rate_at_which_both_ways_take_equally_long() -> None:
    cost = Cost("zstd", 1000, 20e-6, 30e-6)
    link = pays_below(cost, 226_000)
    assert 226_000 * 8 / link == pytest.approx(1000 * 8 / link + 50e-6)
    assert pays_below(Cost("zstd", 226_000, 1e-6, 1e-6), 226_000) == 0


def test_measuring_encodes_and_decodes() -> None:
    array = ArraySpec((84, 84, 1), "uint8")
    parts = [np.full(2 * array.nbytes, i, np.uint8) for i in range(3)]
    cost = measure_codec("zstd", array, 2, parts, decode=True)
    assert cost.nbytes < 100 and cost.encode_seconds > 0 and cost.decode_seconds > 0


class Recorder(InstantLearner):
    """Keeps the payload of every step."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.steps: list[tuple[int, bytes]] = []

    def send(self, header: bytes, payload: Any = b"") -> None:
        head = unpack_header(header)
        if head.kind == Kind.STEP:
            assert len(payload) == head.payload_bytes
            self.steps.append((head.stream, bytes(payload)))
        super().send(header, payload)


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Pictures]]:
    envs: list[Pictures] = []

    def create(config: Any, num_envs: int, **options: Any) -> Pictures:
        envs.append(Pictures(num_envs, pause=0.01))
        return envs[-1]

    monkeypatch.setitem(Environments.__init__.__kwdefaults__, "create", create)
    yield envs


CONFIG = make_config({"actors": {"envs": 5, "streams": 2}})


def session(learner: InstantLearner, environments: Environments) -> ActorSession:
    return ActorSession(learner, environments, actor_id="a", envs=5, streams=2, profile=Profile())


def test_rows_of_an_actor_decode_to_the_observations_of_its_environments(played: list[Pictures]) -> None:
    learner = Recorder(CONFIG, False)
    environments = Environments(threads=1)
    actor = session(learner, environments)
    actor.open()
    assert [env.resets for env in played] == [2, 1], "the first was played to choose codecs, then reset"
    first = len(played[0].shown) - 1
    for _ in range(10):
        assert actor.turn(0.0)
    actor.close(goodbye=False)
    assert learner.codecs["noise"] == "raw" and learner.codecs["picture"] == "zstd"
    assert {"environment", "encoding", "wire", "waiting"} == set(actor.profile.seconds())
    shown = [iter(played[0].shown[first:]), iter(played[1].shown)]
    layouts = [RowLayout(SPEC, env.num_envs) for env in played]
    decoders = [RowDecoder(layout, learner.codecs) for layout in layouts]
    assert len(learner.steps) == 12
    for stream, payload in learner.steps:
        row = np.zeros(layouts[stream].nbytes, np.uint8)
        decoders[stream].decode(payload, memoryview(row))
        views, expected = layouts[stream].views(row), next(shown[stream])
        assert all(np.array_equal(views.observation[name], expected[name]) for name in expected)


def test_the_choice_is_kept_over_reconnections(played: list[Pictures], monkeypatch: pytest.MonkeyPatch) -> None:
    environments = Environments(threads=1)
    for resets in (2, 3, 4):
        learner = InstantLearner(CONFIG, shares_memory=False)
        actor = session(learner, environments)
        actor.open()
        assert played[0].resets == resets and learner.codecs["picture"] == "zstd"
        actor.close(goodbye=False)


@pytest.mark.parametrize(
    ("compression", "learner", "encodes"),
    [
        ("auto", "elsewhere", True),
        ("auto", "here", False),
        ("auto", "in memory", False),
        ("on", "elsewhere", True),
        ("on", "here", True),
        ("on", "in memory", False),
        ("off", "elsewhere", False),
    ],
)
def test_when_an_actor_encodes(played: list[Pictures], compression: str, learner: str, encodes: bool) -> None:
    environments = Environments(threads=1)
    environments.build(CONFIG.environment, [5])
    message = {"compression": compression, "codecs": [*CODECS, "of a later version"]}
    message["machine"] = "another" if learner == "elsewhere" else machine_id()
    codecs = environments.codecs(message, 1, learner == "in memory")
    assert codecs.keys() == SPEC.arrays.keys()
    assert (set(codecs.values()) != {"raw"}) == encodes == (played[0].resets > 0)
