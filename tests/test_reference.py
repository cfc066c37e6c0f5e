"""Generated pages and pictures of docs/ are up to date."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[1] / "docs"


@pytest.mark.parametrize(
    ("script", "function", "output"),
    [
        ("make_reference.py", "page", "configuration.md"),
        ("draw_architecture.py", "picture", "architecture.svg"),
        ("draw_concepts.py", "picture", "concepts.svg"),
        ("topology_picture.py", "picture", "topology.svg"),
    ],
)
def test_a_generated_file_is_up_to_date(
    script: str, function: str, output: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(DOCS)  # as when a script is started
    fresh = runpy.run_path(str(DOCS / script))[function]()
    assert fresh == (DOCS / output).read_text(encoding="utf-8"), f"run: python docs/{script} docs/{output}"
