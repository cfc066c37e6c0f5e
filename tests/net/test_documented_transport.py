"""The example of docs/writing-a-transport.md carries rows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from seedcli.net.base import PING_TIMEOUT_SECONDS
from seedcli.net.transports import transport_of
from tests.net.harness import Actor, Learner, Row, security_of

PAGE = Path(__file__).resolve().parents[2] / "docs" / "writing-a-transport.md"


def test_the_documented_transport_carries_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (example,) = re.findall(r"```python\n(from pydantic .*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "documented_net.py").write_text(example)
    monkeypatch.syspath_prepend(tmp_path)
    transport, security = transport_of("documented_net:MyTransport"), security_of("+token")
    learner = Learner(transport.listen("127.0.0.1", 0, security, PING_TIMEOUT_SECONDS), [1000]).start()
    try:
        actor = Actor(learner.server.address, security=security)
        actor.echo(0, b"\x07" * 1000)
        assert learner.rows == [Row("actor", 0, 0, b"\x07" * 1000)]
        actor.client.close()
    finally:
        learner.close()
