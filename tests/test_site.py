"""The site of docs/ needs neither a server nor a network. `.ci/run` builds it too, where a warning is an error."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.results.browser import CHROMIUM, Browser

ROOT = Path(__file__).resolve().parents[1]
QUERY = "standby learner"
TYPE_QUERY = f"""new Promise((resolve, reject) => {{
  const input = document.querySelector(".md-search__input"), list = document.querySelector(".md-search-result__list");
  const links = () => [...list.querySelectorAll("a.md-search-result__link")].map((link) => link.href);
  new MutationObserver(() => links().length && resolve(links())).observe(list, {{ childList: true }});
  setTimeout(() => reject("nothing found"), 30000);
  input.focus();
  input.value = "{QUERY}";
  input.dispatchEvent(new Event("keyup", {{ bubbles: true }}));
}})"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_search_works_without_server_and_network(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="pip install '.[docs]'")
    if not CHROMIUM:
        pytest.skip("needs Chromium")
    site = tmp_path / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(site)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    with Browser(tmp_path / "profile") as browser:
        browser.open(site / "index.html", 1280)
        found = browser.run(TYPE_QUERY)
        assert any(link.split("?")[0].endswith("/running.html") for link in found), found
        assert [address for address in browser.requests if address.startswith("http")] == []
        assert browser.complaints == []
