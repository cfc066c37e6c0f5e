"""`seed bench actor`: an actor that never waits, and the share of its time spent in the simulator."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from seedcli.bench.output import machine, print_progress, show, table
from seedcli.config.schema import Config
from seedcli.envs.registry import family_of
from seedcli.errors import UsageError
from seedcli.net.base import Frame, Payload
from seedcli.net.codecs import CODECS, RAW, RowEncoder
from seedcli.net.frames import Kind, decode_control, encode_control, pack_header, unpack_header
from seedcli.net.messages import parse_spec
from seedcli.net.security.keys import new_nonce
from seedcli.net.security.token import Token
from seedcli.roles.actor.session import ActorSession, Environments
from seedcli.specs import RowLayout, aligned_empty, split_envs
from seedcli.telemetry.metrics import Profile

# The calls that step a library's vector environment.
_CALLS = frozenset(("step", "send", "recv"))
_WARM_UP = 0.25  # warm-up, as a fraction of the measurement's length


class InstantLearner:
    """A `net.base.ClientTransport` that answers in the same call: every step with the same actions.

    Args:
        config: sets the environment and the actors.
        shares_memory: rows are written to shared memory; else they are encoded if that pays off.
    """

    address = "in this process"
    token: Token | None = None

    def __init__(self, config: Config, shares_memory: bool) -> None:
        self._config = config
        self._shares_memory = shares_memory
        self._inbox: deque[Frame] = deque()
        self._sizes: list[int] = []
        self._actions: list[bytes] = []
        self.codecs: dict[str, str] = {}
        self.bytes_sent = 0

    @property
    def shares_memory(self) -> bool:
        return self._shares_memory

    def connect(self, timeout: float) -> None:
        """Does nothing."""

    def _answer(self, kind: Kind, message: Mapping[str, Any]) -> None:
        body = encode_control(message)
        self._inbox.append(Frame(unpack_header(pack_header(kind, len(body))), body))

    def send(self, header: bytes, payload: Payload = b"") -> None:
        kind, stream, sequence, size, _ = unpack_header(header)
        if kind == Kind.STEP:
            self.bytes_sent += size
            actions = self._actions[stream]
            answer = pack_header(Kind.ACTION, len(actions), stream=stream, sequence=sequence, session=1)
            self._inbox.append(Frame(unpack_header(answer), actions))
        elif kind == Kind.HELLO:
            self._answer(Kind.CHALLENGE, {"nonce": new_nonce(), "proof_required": False})
        elif kind == Kind.PROOF:
            environment = self._config.environment.model_dump(mode="json")
            agreed = {"compression": "auto", "codecs": list(CODECS), "machine": "another"}
            self._answer(Kind.CONFIGURE, {"environment": environment, "seed": 1, "evaluation_envs": 0, **agreed})
        elif kind == Kind.SPEC:
            self._admit(payload)

    def _admit(self, payload: Payload) -> None:
        actors = self._config.actors
        announcement = parse_spec(decode_control(payload), actors.envs)
        spec, self.codecs = announcement.spec, announcement.codecs
        split = split_envs(actors.envs, min(actors.streams, actors.envs))
        layouts = [RowLayout(spec, envs) for envs in split]
        plain = all(codec == RAW for codec in self.codecs.values())
        self._sizes = [x.nbytes if plain else RowEncoder(x, self.codecs).max_payload for x in layouts]
        self._actions = [bytes(spec.action.array.nbytes * envs) for envs in split]
        self._answer(
            Kind.READY,
            {
                "session": 1, "stream_envs": split, "payload_bytes": self._sizes, "heartbeat_seconds": 3600.0,
                "timeout_seconds": 3600.0, "reconnect_timeout": 0.0,
            },
        )  # fmt: skip

    def receive(self, timeout: float) -> Frame | None:
        return self._inbox.popleft() if self._inbox else None

    def open_session(self, ready: Mapping[str, Any], payload_bytes: Sequence[int]) -> list[memoryview]:
        return [aligned_empty(nbytes).data for nbytes in payload_bytes]

    def send_row(self, stream: int, header: bytes) -> None:
        self.send(header)

    def heartbeat(self, header: bytes) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""


class _Timed:
    """A simulator whose calls are timed."""

    def __init__(self, simulator: Any) -> None:
        self._simulator = simulator
        self.seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._simulator, name)
        if name not in _CALLS:
            return value

        def timed(*arguments: Any, **options: Any) -> Any:
            begun = time.perf_counter()
            try:
                return value(*arguments, **options)
            finally:
                self.seconds += time.perf_counter() - begun

        return timed


def measure_actor(config: Config, shares_memory: bool, seconds: float) -> dict[str, Any]:
    """Run an actor's own loop against a learner that answers at once.

    Args:
        config: of a preset.
        shares_memory: see `InstantLearner`.
        seconds: length of the measurement.

    Returns:
        Environment steps a second, the codecs, bytes of a step of one environment, and shares of the time: the
        simulator's own calls; its adapter around them; encoding; the rest.

    Raises:
        UsageError: the family has no simulator that can be timed.
        EnvironmentFailed: the environment cannot be built.
    """
    family = family_of(config.environment)
    if not family.simulator:
        raise UsageError(
            f"environment.family {config.environment.family} has no vector environment of its own to time separately: "
            "choose a preset of atari or football"
        )
    environments, profile = Environments(threads=0), Profile()
    learner = InstantLearner(config, shares_memory)
    streams = min(config.actors.streams, config.actors.envs)
    session = ActorSession(
        learner, environments, actor_id="bench", envs=config.actors.envs, streams=streams, profile=profile
    )
    try:
        session.open()
        simulators = []
        for stream in range(streams):
            holder: Any = environments[stream]
            *path, name = family.simulator
            for part in path:
                holder = getattr(holder, part)
            simulators.append(_Timed(getattr(holder, name)))
            setattr(holder, name, simulators[-1])

        def run(length: float) -> tuple[float, dict[str, float]]:
            begun = now = time.perf_counter()
            before = profile.seconds() | {"simulator": sum(s.seconds for s in simulators)}
            while now - begun < length:
                session.turn(0.0)
                now = time.perf_counter()
            after = profile.seconds() | {"simulator": sum(s.seconds for s in simulators)}
            return now - begun, {name: value - before.get(name, 0.0) for name, value in after.items()}

        run(_WARM_UP * seconds)
        steps, sent = session.steps, learner.bytes_sent
        wall, spent = run(seconds)
        steps, sent = session.steps - steps, learner.bytes_sent - sent
    finally:
        session.close(goodbye=False)
        environments.close()
    return {
        "steps_per_second": steps / wall,
        "codecs": learner.codecs,
        "bytes_per_step": sent / steps,
        "simulator": spent["simulator"] / wall,
        "adapter": (spent["environment"] - spent["simulator"]) / wall,
        "encoding": spent.get("encoding", 0.0) / wall,
        "rest": (wall - spent["environment"] - spent.get("encoding", 0.0)) / wall,
    }


def run_bench_actor(config: Config, *, seconds: float, json_output: bool) -> int:
    """`seed bench actor`: shares of an actor's time, with plain and with encoded rows.

    Args:
        config: of a preset.
        seconds: length of each of the two measurements.
        json_output: print JSON instead of a table.
    """
    ways = {"shared memory": True, "over a network": False}
    found = {}
    for name, shares_memory in ways.items():
        print_progress(
            f"{config.run.preset}, {config.actors.envs} environments in {config.actors.streams} streams, {name}"
        )
        found[name] = measure_actor(config, shares_memory, seconds)
    result = {"bench": "actor", "preset": config.run.preset, "seconds": seconds, "machine": machine(), "ways": found}
    shown = table(
        f"an actor of {config.run.preset} that never waits: where its time goes",
        "rows", "codec", "bytes a step", "steps/s", "simulator", "adapter", "encoding", "rest",
    )  # fmt: skip
    for name, figures in found.items():
        shown.add_row(
            name, ", ".join(sorted(set(figures["codecs"].values()))), f"{figures['bytes_per_step']:,.0f}",
            f"{figures['steps_per_second']:,.0f}",
            *(f"{100 * figures[part]:.1f} %" for part in ("simulator", "adapter", "encoding", "rest")),
        )  # fmt: skip
    return show(result, json_output, [shown])
