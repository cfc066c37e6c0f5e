"""Steps per second over a slow link, plain and encoded: two network namespaces with a rate limit between them.

    sudo python docs/link_benchmark.py [--mbit 100] [--seconds 5] [--game pong] [--frame-skip 4]

Needs root, and Linux's `ip` and `tc`. A learner's inference path with constant actions runs in one namespace. The other
runs two clients over TCP, each with two streams of 32 environments: a sender of recorded frames, and a real actor. The
sender encodes every message, so that the link or the codec is the limit, not the emulator. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import queue
import subprocess
import sys
import threading
import time
from typing import Any

from seedcli.config.schema import make_environment_config
from seedcli.config.sections import EnvironmentConfig
from seedcli.envs.registry import create_env
from seedcli.errors import SeedError
from seedcli.net.base import ServerTransport
from seedcli.net.codecs import RowEncoder
from seedcli.net.connect import connect
from seedcli.net.frames import Kind, pack_header
from seedcli.net.handshake import ClientHandshake
from seedcli.roles.actor.codec_choice import play
from seedcli.roles.actor.session import ActorSession, Environments
from seedcli.specs import ArraySpec, EnvSpec
from seedcli.telemetry.metrics import Profile

_LEARNER, _ACTOR = "seed-link-learner", "seed-link-actor"
_HOST = "10.231.7.1"
_ENVS, _STREAMS = 64, 2
_UNROLL = 20
_RECORDED = 64


def serve(kind: str, played: EnvironmentConfig, compression: str) -> None:
    """Serve a learner's inference path with constant actions; prints its address."""
    from seedcli.agents.base import AlgorithmSpec
    from seedcli.bench.servers import ConstantPolicy
    from seedcli.inference.arena import Arena
    from seedcli.inference.engine import StepEngine
    from seedcli.net.grpc import GrpcServer
    from seedcli.net.zmq import ZmqServer
    from seedcli.serving.service import InferenceService
    from seedcli.serving.sessions import FleetSettings

    server: ServerTransport = GrpcServer(_HOST, 0) if kind == "grpc" else ZmqServer(_HOST, 0)
    environment = played.model_dump(mode="json")
    settings = FleetSettings(environment, 1, _ENVS, 5.0, 60.0, 0.0, compression=compression)
    unrolls: queue.SimpleQueue[Any] = queue.SimpleQueue()
    engines: list[Any] = []

    def engine_for(spec: EnvSpec, on_fault: Any) -> Any:
        if not engines:
            recorded = {"policy": ArraySpec((sum(spec.action.categories),), "float32")}
            algorithm = AlgorithmSpec("constant", 0, _UNROLL, "queue", recorded)
            arena = Arena(
                spec, algorithm.records, recorded, batch_size=_ENVS, queue_batches=1, on_release=lambda: service.wake()
            )
            policy = ConstantPolicy(_ENVS, spec, recorded)
            engines.append(
                StepEngine(
                    algorithm, spec, policy, arena, max_envs=_ENVS, batch_size=0, deadline=0.004,
                    on_unroll=unrolls.put, on_fault=on_fault,
                )
            )  # fmt: skip

            def release() -> None:
                while True:
                    arena.release(unrolls.get())

            threading.Thread(target=release, daemon=True).start()
        return engines[0]

    service = InferenceService([server], settings, engine_for)
    print(server.address, flush=True)
    service.run()


def replay(address: str, played: EnvironmentConfig, compression: str, seconds: float) -> dict[str, Any]:
    """Send recorded frames as fast as they are answered."""
    env = create_env(played, _ENVS // _STREAMS)
    sample = play(env, 1, least=_RECORDED, most=_RECORDED, skip=100)
    env.close()
    transport = connect(address)
    transport.connect(10.0)
    handshake = ClientHandshake(transport, actor_id="replay", envs=_ENVS, streams=_STREAMS, timeout=30.0)
    handshake.configure()
    codecs = dict.fromkeys(sample.layout.spec.arrays, "zstd" if compression == "on" else "raw")
    ready = handshake.announce(sample.layout.spec, codecs)
    buffers = transport.open_session(ready.extra, ready.payload_bytes)
    encoder = RowEncoder(sample.layout, codecs) if compression == "on" else None
    sequence = [0] * _STREAMS
    sent = messages = 0

    def send(stream: int) -> None:
        nonlocal sent
        row = sample.rows[sequence[stream] % len(sample.rows)]
        size = len(row)
        if encoder is not None:
            size = encoder.encode(row, buffers[stream])
        else:
            buffers[stream][:] = row.data
        header = pack_header(Kind.STEP, size, stream=stream, sequence=sequence[stream], session=ready.session)
        transport.send(header, buffers[stream][:size])
        sequence[stream] += 1
        sent += size

    for stream in range(_STREAMS):
        send(stream)
    begun = time.perf_counter()
    while time.perf_counter() - begun < seconds:
        frame = transport.receive(10.0)
        if frame is None:
            raise SeedError("the learner does not answer")
        messages += 1
        send(frame.header.stream)
    wall = time.perf_counter() - begun
    transport.close()
    steps = messages * _ENVS // _STREAMS
    return {"steps_per_second": steps / wall, "bytes_per_step": sent / (steps + _ENVS), "codecs": codecs}


def act(address: str, seconds: float) -> dict[str, Any]:
    """Run the loop of a real actor."""
    environments, profile = Environments(threads=0), Profile()
    session = ActorSession(
        connect(address), environments, actor_id="real", envs=_ENVS, streams=_STREAMS, profile=profile
    )
    session.open()
    begun, first = time.perf_counter(), session.steps
    while time.perf_counter() - begun < seconds:
        session.turn(0.5)
    wall = time.perf_counter() - begun
    steps = session.steps - first
    session.close(goodbye=True)
    environments.close()
    return {"steps_per_second": steps / wall, "profile": profile.seconds()}


def _run(*command: str, check: bool = True) -> None:
    subprocess.run(command, check=check, capture_output=not check)


def build(mbit: float) -> None:
    """Create two namespaces, a pair of interfaces, and a token bucket at both ends."""
    tear_down()
    _run("ip", "netns", "add", _LEARNER)
    _run("ip", "netns", "add", _ACTOR)
    _run("ip", "link", "add", "seed-l", "netns", _LEARNER, "type", "veth", "peer", "name", "seed-a", "netns", _ACTOR)
    for space, device, address in ((_LEARNER, "seed-l", _HOST), (_ACTOR, "seed-a", "10.231.7.2")):
        inside = ("ip", "netns", "exec", space)
        _run(*inside, "ip", "address", "add", f"{address}/24", "dev", device)
        _run(*inside, "ip", "link", "set", device, "up")
        _run(*inside, "ip", "link", "set", "lo", "up")
        rate = ("rate", f"{mbit:g}mbit", "burst", "64kb", "latency", "50ms")
        _run(*inside, "tc", "qdisc", "add", "dev", device, "root", "tbf", *rate)


def tear_down() -> None:
    """Remove the namespaces and their interfaces."""
    for space in (_LEARNER, _ACTOR):
        _run("ip", "netns", "delete", space, check=False)


def measure(transport: str, played: EnvironmentConfig, seconds: float, role: str, compression: str) -> dict[str, Any]:
    """Run one role against a new learner; returns its result."""
    mine = (sys.executable, __file__, "--game", played.id, "--frame-skip", str(played.frame_skip))
    mine += ("--seconds", str(seconds), "--transport", transport)
    options = (*mine, "--compression", compression)
    learner = subprocess.Popen(
        ("ip", "netns", "exec", _LEARNER, *options, "--role", "serve"), stdout=subprocess.PIPE, text=True
    )
    try:
        assert learner.stdout is not None
        address = learner.stdout.readline().strip()
        command = ("ip", "netns", "exec", _ACTOR, *options, "--role", role, "--connect", address)
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=120 + seconds, check=True)
        result: dict[str, Any] = json.loads(done.stdout)
        return result
    finally:
        learner.kill()
        learner.wait()


def main() -> None:
    """Build the link, measure, tear it down, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mbit", type=float, default=100.0, help="rate of the link")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of each measurement")
    parser.add_argument("--game", default="pong", help="Atari game")
    parser.add_argument("--frame-skip", type=int, default=4, help="frames of a step: fewer make faster emulators")
    parser.add_argument("--transport", choices=("grpc", "zmq"), default="grpc")
    parser.add_argument("--role", choices=("serve", "replay", "act"), help=argparse.SUPPRESS)
    parser.add_argument("--compression", choices=("on", "off"), help=argparse.SUPPRESS)
    parser.add_argument("--connect", help=argparse.SUPPRESS)
    options = parser.parse_args()
    played = make_environment_config({"family": "atari", "id": options.game, "frame_skip": options.frame_skip})
    if options.role == "serve":
        serve(options.transport, played, options.compression)
        return
    if options.role == "replay":
        print(json.dumps(replay(options.connect, played, options.compression, options.seconds)))
        return
    if options.role == "act":
        print(json.dumps(act(options.connect, options.seconds)))
        return
    build(options.mbit)
    try:
        result: dict[str, Any] = {
            "mbit": options.mbit,
            "game": options.game,
            "frame_skip": options.frame_skip,
            "transport": options.transport,
        }
        for role in ("replay", "act"):
            for compression, name in (("off", "plain"), ("on", "encoded")):
                figures = measure(options.transport, played, options.seconds, role, compression)
                result[f"{role}_{name}"] = figures
            plain, encoded = (result[f"{role}_{name}"]["steps_per_second"] for name in ("plain", "encoded"))
            result[f"{role}_ratio"] = encoded / plain
    finally:
        tear_down()
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
