"""Conflicts between configuration values that are each in range."""

from __future__ import annotations

import re
from collections.abc import Iterator

from seedcli.config.sections import AgentConfig, EnvironmentConfig, NetConfig, NetworkConfig, Sections, TrainingConfig
from seedcli.errors import UsageError, first_line, place_of

_HOST_AND_PORT = re.compile(r"(\[[0-9A-Fa-f:.%\w]+\]|[^\s:\[\]]+):[1-9]\d{0,4}")


def conflicts(config: Sections) -> Iterator[str]:
    """Conflicts between values that are each in range; each is one sentence that names the full keys."""
    training, inference, actors, net = config.training, config.inference, config.actors, config.net
    for chosen in (config.environment, config.agent, config.agent.network, net):
        yield from own_conflicts(chosen, config)
    if training.learning_rate_schedule == "linear" and training.learning_rate_end > training.learning_rate:
        yield (
            f"training.learning_rate_end = {training.learning_rate_end} must be at most "
            f"training.learning_rate = {training.learning_rate}: the rate can only decrease"
        )
    yield from _replay_conflicts(config)
    yield from _topology_conflicts(config)
    if actors.streams > actors.envs:
        yield (
            f"actors.streams = {actors.streams} must be at most actors.envs = {actors.envs}: "
            "every stream needs an environment, so lower actors.streams or raise actors.envs"
        )
    hosts = max(1, len(config.topology.hosts))
    if actors.count * actors.envs > inference.max_envs * hosts:
        yield (
            f"actors.count = {actors.count} times actors.envs = {actors.envs} must be at most "
            + (f"{hosts} times " if hosts > 1 else "")
            + f"inference.max_envs = {inference.max_envs}, the environments the learner accepts"
        )
    if inference.batch_size > inference.max_envs:
        yield (
            f"inference.batch_size = {inference.batch_size} must be at most "
            f"inference.max_envs = {inference.max_envs}: a larger batch can never fill"
        )
    if any(small >= large for small, large in zip(inference.pad_to, inference.pad_to[1:], strict=False)):
        yield f"inference.pad_to = {list(inference.pad_to)} must be in increasing order"
    loggers = config.telemetry.loggers
    if len(set(loggers)) < len(loggers):
        yield f"telemetry.loggers = {list(loggers)} must name each logger once"
    if net.heartbeat_seconds >= net.timeout_seconds:
        yield (
            f"net.heartbeat_seconds = {net.heartbeat_seconds} must be below "
            f"net.timeout_seconds = {net.timeout_seconds}, or live actors time out"
        )
    if net.grpc_port == net.zmq_port and net.grpc_port > 0:
        yield f"net.grpc_port = {net.grpc_port} must differ from net.zmq_port = {net.zmq_port}: each needs its own port"
    if bool(net.tls_cert) != bool(net.tls_key):
        given, missing = ("tls_cert", "tls_key") if net.tls_cert else ("tls_key", "tls_cert")
        yield (
            f'net.{given} = "{getattr(net, given)}" needs net.{missing}: set both the certificate and its private key'
        )
    if net.tls_ca and not net.tls_cert:
        yield (
            f'net.tls_ca = "{net.tls_ca}" needs net.tls_cert and net.tls_key: a learner that checks certificates '
            "must present its own"
        )
    if net.insecure and (net.token_file or net.tls_cert):
        yield (
            "net.insecure = true disables the token and encryption: remove net.token_file and net.tls_cert, or set "
            "net.insecure = false"
        )


def own_conflicts(
    chosen: AgentConfig | EnvironmentConfig | NetConfig | NetworkConfig, config: Sections
) -> Iterator[str]:
    """The conflicts that a choice's own configuration finds.

    Raises:
        UsageError: the method, which may be a user's, fails or yields something else.
    """
    method = f"{type(chosen).__name__}.conflicts"
    try:
        found = list(chosen.conflicts(config))
    except Exception as error:
        raise UsageError(f"{method} failed: {first_line(error)}{place_of(error)}") from error
    for sentence in found:
        if not isinstance(sentence, str):
            raise UsageError(f"{method} yields {sentence!r}: it must yield text, one sentence for each contradiction")
        yield sentence


def hosts_conflict(config: Sections, hosts: int, platform: str, setting: str = "topology.hosts") -> str:
    """One sentence that says why learner hosts cannot train together on a platform; "" if they can.

    Args:
        hosts: number of learner hosts.
        setting: the key or flag that set the number of hosts, for the message.
    """
    if hosts > 1 and platform == "tpu":
        return (
            f"topology.platform = tpu must not be used with {hosts} {setting}: the cores of a TPU belong to one host, "
            f"so remove {setting}"
        )
    return batch_conflict(config.training, hosts, setting=setting)


def batch_conflict(
    training: TrainingConfig, hosts: int, devices: int | None = None, setting: str = "topology.hosts"
) -> str:
    """One sentence that says why minibatches cannot be split evenly over hosts and devices; "" if they can.

    Args:
        training: batch size and number of minibatches.
        hosts: number of learner hosts; 0 counts as 1.
        devices: training devices of each host; None: not known yet.
        setting: see `hosts_conflict`.
    """
    hosts, batch, parts = max(1, hosts), training.batch_size, training.minibatches
    needed = hosts * (devices or 1) * parts
    if batch % needed == 0:
        return ""
    places, each, advice = f"the number of {setting}", "host", ""
    if devices is not None:
        places = f"{devices} training devices" + (f" on each of {hosts} hosts" if hosts > 1 else "")
        each, advice = "device", ", so change one of the two"
    if parts == 1:
        what = f"{needed}, {places}: every {each} trains on the same number of unrolls{advice}"
    elif hosts * (devices or 1) == 1:
        what = (
            f"training.minibatches = {parts}: every minibatch has the same number of unrolls, so change one of the two"
        )
    else:
        what = (
            f"{needed}, training.minibatches = {parts} times {places}: every {each} trains on minibatches of the same "
            "number of unrolls, so change one of them"
        )
    return f"training.batch_size = {batch} must be a multiple of {what}"


def _topology_conflicts(config: Sections) -> Iterator[str]:
    """Conflicts of devices and hosts that do not depend on the devices of this machine, one sentence each."""
    topology = config.topology
    if topology.virtual_devices and topology.platform != "cpu":
        yield (
            f"topology.virtual_devices = {topology.virtual_devices} needs topology.platform = cpu: only the CPU "
            "can be split"
        )
    if topology.precision == "mixed_float16" and topology.platform in ("cpu", "tpu"):
        yield (
            f"topology.precision = mixed_float16 must not be used with topology.platform = {topology.platform}: "
            "it is for GPUs; use mixed_bfloat16 or float32"
        )
    listed = list(topology.hosts)
    for host in listed:
        if not _HOST_AND_PORT.fullmatch(host):
            yield f'topology.hosts = {listed} must each be host:port, such as "node1:8690", and "{host}" is not'
        elif listed.count(host) > 1:
            yield f'topology.hosts = {listed} must be different hosts or ports, and "{host}" is listed twice'
    hosts = len(listed)
    if topology.host_index >= max(1, hosts):
        yield (
            f"topology.host_index = {topology.host_index} must be below {max(1, hosts)}, the number of topology.hosts"
        )
    if unfit := hosts_conflict(config, hosts, topology.platform):
        yield unfit
    if hosts > 1 and not topology.trust_network:
        yield (
            f"topology.hosts = {listed} need --trust-network: TensorFlow's connections between learner "
            "hosts are neither encrypted nor authenticated (docs/security.md), so use them only on a private network"
        )


def _replay_conflicts(config: Sections) -> Iterator[str]:
    """Conflicts of evaluation streams and replay, one sentence each."""
    agent, training, replay, actors = config.agent, config.training, config.replay, config.actors
    if actors.evaluation_envs > actors.count * (actors.envs - 1):
        yield (
            f"actors.evaluation_envs = {actors.evaluation_envs} must be at most "
            f"{actors.count * (actors.envs - 1)} with actors.count = {actors.count} and actors.envs = {actors.envs}: "
            "each actor needs an environment to train with"
        )
    if actors.evaluation_envs and not agent.evaluates:
        yield (
            f"actors.evaluation_envs = {actors.evaluation_envs} must be 0 with agent.algorithm {agent.algorithm}, "
            "which explores with its policy alone: use seed eval --watch"
        )
    if agent.source != "replay":
        return
    for key in ("epochs", "minibatches"):
        if getattr(training, key) > 1:
            yield (
                f"training.{key} = {getattr(training, key)} must be 1 with agent.algorithm {agent.algorithm}: "
                "replay.ratio sets how often it trains on an unroll, and training.batch_size the unrolls of an update"
            )
    if training.synchronous:
        yield (
            f"training.synchronous = true must be false with agent.algorithm {agent.algorithm}: it trains from a "
            "replay, and replay.ratio sets the pace of environments and training"
        )
    if replay.capacity < replay.min_size:
        yield (
            f"replay.capacity = {replay.capacity} must be at least replay.min_size = {replay.min_size}, "
            "or training never starts"
        )
    filled = replay.min_size * training.unroll_length
    if config.run.steps <= filled:
        yield (
            f"run.steps = {config.run.steps} must be above {filled}, replay.min_size = {replay.min_size} unrolls of "
            f"training.unroll_length = {training.unroll_length} steps: the run would end before training starts"
        )
    batch = training.batch_size * (agent.sample_length or training.unroll_length) / training.unroll_length
    short = f" (columns of {agent.sample_length}, {batch:g} unrolls)" if agent.sample_length else ""
    needed = (batch + replay.ratio) / 2
    if 0 < replay.window < needed:
        yield (
            f"replay.window = {replay.window:g} must be 0 (automatic) or at least {needed:g}, half of "
            f"training.batch_size = {training.batch_size}{short} plus replay.ratio = {replay.ratio:g}: "
            "with a smaller window, training and insertion would block each other"
        )
