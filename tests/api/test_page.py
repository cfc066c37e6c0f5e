"""The examples of docs/python-api.md run unchanged, one after the other, on a tiny run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import seedcli
from tests.api.helpers import untrained

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "python-api.md").read_text(encoding="utf-8")
STEPS = "steps=100_000"


@pytest.mark.timeout(300)
def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    untrained(tmp_path / "runs" / "cartpole", "cartpole_vtrace", "CartPole-v1")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("SEED_TELEMETRY__INTERVAL_SECONDS", "0.2")
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)
    assert len(blocks) == 5 and "".join(blocks).count(STEPS) == 1
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block.replace(STEPS, "steps=5_000"), "python-api.md", "exec"), names)
    printed = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"return \d+ after 70 steps of training", printed[0])
    assert printed[2] == "['logits', 'probabilities', 'value']"
    run = names["run"]
    assert isinstance(run, seedcli.Run) and run.path == tmp_path / "runs" / "short"
    assert isinstance(names["policy"], seedcli.Policy) and not names["policy"].greedy
    assert re.fullmatch(r"\d+ lines, the last return [\d.]+", printed[-2]) and "±" in printed[-1]
