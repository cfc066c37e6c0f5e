"""The sentence for an actor whose connections the learner closes before it answers."""

from __future__ import annotations

from seedcli.net.security.keys import Security


def refusal(address: str, security: Security | None, reason: str = "") -> str:
    """Return the message for an actor whose connections the learner accepts and then closes.

    Args:
        address: the learner's address.
        security: the actor's security.
        reason: the reason, as far as it is known.
    """
    why = f" ({reason})" if reason else ""
    if security is None:
        return f"the learner at {address} closes unencrypted connections{why}: leave out --insecure, or give it to both"
    if security.tls is not None and not address.startswith("zmq:"):
        return (
            f"the learner at {address} and this actor do not trust each other's certificates{why}: check --tls-ca, "
            "--tls-cert and --tls-key of both"
        )
    return (
        f"the learner at {address} and this actor do not trust each other{why}: the actor's token is the one from "
        f"{security.token.source}; give both the same token (seed token show), or --insecure to both; for a learner "
        "started with --tls-cert, give --tls-ca here"
    )
