"""Command-line flags that each set one configuration key."""

from __future__ import annotations

from seedcli.errors import UsageError

FLAG_KEYS = {
    "--steps": "run.steps",
    "--seed": "run.seed",
    "--deterministic": "run.deterministic",
    "--env": "environment.id",
    "--family": "environment.family",
    "--agent": "agent.algorithm",
    "--network": "agent.network.torso",
    "--envs": "actors.envs",
    "--actors": "actors.count",
    "--transport": "net.transport",
    "--host": "net.host",
    "--grpc-port": "net.grpc_port",
    "--zmq-port": "net.zmq_port",
    "--insecure": "net.insecure",
    "--token-file": "net.token_file",
    "--tls-cert": "net.tls_cert",
    "--tls-key": "net.tls_key",
    "--tls-ca": "net.tls_ca",
    "--metrics-port": "net.metrics_port",
    "--hosts": "topology.hosts",
    "--host-index": "topology.host_index",
    "--trust-network": "topology.trust_network",
}


def name_flags(error: UsageError) -> UsageError:
    """The same error, with `--set KEY=…` replaced by the key's own flag where it has one."""
    sentence = str(error)
    for flag, key in FLAG_KEYS.items():
        sentence = sentence.replace(f"--set {key}=…", f"{flag} …")
    return UsageError(sentence)
