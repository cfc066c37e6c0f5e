"""`seed report`: its page in a real browser, without a network."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from seedcli.cli.main import main
from seedcli.results.charts import POINTS, chart_data
from seedcli.results.report import short_names
from seedcli.results.runs import read_run
from tests.results.browser import CHROMIUM, Browser
from tests.results.helpers import START, line, make_run

NASTY = "</script><script>alert(1)</script>&<b>"
SESSION = {
    "started": START,
    "command": ["seed", "train", "--preset", "made_up", "--logdir", "a b"],
    "versions": {"python": "3.11.7", "tensorflow": "2.21.0"},
    "machine": {"system": "Linux", "cpu": "a CPU", "cores": 2, "memory_gb": 25.3, "accelerators": []},
}
END = {"ended": START + 30, "status": 0, "error": "", "profile": {"training thread": {"training": 3.0, "waiting": 9.0}}}
EVALUATION = {
    "time": START, "env_steps": 3000, "actions": "greedy", "episodes": 20, "return_mean": 41.5, "return_std": 2.0,
    "length_mean": 99.0,
}  # fmt: skip


def lines(slope: float) -> list[dict[str, Any]]:
    return [line(steps, slope * steps, loss=1 / steps, entropy=0.5 + slope) for steps in range(100, 10_001, 100)]


@pytest.fixture
def runs(tmp_path: Path) -> list[str]:
    first = make_run(tmp_path / "one", lines(0.01), sessions=[SESSION, END])
    second = make_run(tmp_path / f"two{NASTY.replace('/', '')}", lines(0.02), seed=2, batch_size=32)
    (first / "evaluations.jsonl").write_text(json.dumps(EVALUATION) + "\ntorn")
    (first / "play.mp4").write_bytes(b"\0\0\0\x18ftypmp42")
    return [str(first), str(second)]


def test_the_page_says_what_a_reader_needs(runs: list[str], tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    assert main(["report", *runs, "--threshold", "150", "--threshold", "1e9", "--out", str(out)]) == 0
    page = out.read_text()
    for text in (
        "made_up on gymnasium/CartPole-v1", "finished", "7.50 k", "not reached in 10.0 k steps", "training.batch_size",
        "training 25 %, waiting 75 %", "41.50", "data:video/mp4;base64,AAAAGGZ0eXBtcDQy", "2 cores of a CPU",
        "25.3 GB of memory", "python 3.11.7, tensorflow 2.21.0", "seed train --preset made_up --logdir &#x27;a b&#x27;",
        "config.toml",
    ):  # fmt: skip
        assert text in page, text
    # The page loads nothing external, and names of folders are escaped as text.
    assert not re.search(r'(?:src|href)="(?!data:)', page)
    assert re.findall(r"https?:[^\"' ]*", page) == ["http://www.w3.org/2000/svg"]
    assert "<script>alert" not in page


def test_ten_long_runs_stay_small(tmp_path: Path) -> None:
    text = "".join(
        json.dumps(each | {f"own_{i}": each["env_steps"] / 7 for i in range(20)}) + "\n" for each in lines(0.0137)
    )
    for index in range(10):
        make_run(tmp_path / "runs" / str(index), [], seed=index)
        (tmp_path / "runs" / str(index) / "metrics.jsonl").write_text(text * 10)
    out = tmp_path / "report.html"
    assert main(["report", str(tmp_path / "runs"), "--out", str(out)]) == 0
    assert 100_000 < out.stat().st_size < 3_000_000


def test_chart_data_are_means_of_the_lines_between_points(tmp_path: Path) -> None:
    made = [line(steps, float(steps % 2), entropy=None if steps < 3 else 2.0) for steps in range(2 * POINTS)]
    data = chart_data([read_run(make_run(tmp_path / "a", made))], ["a"], [])
    (run,) = data["runs"]
    series = run["series"]["episode_return_100"]
    assert len(run["steps"]) == len(run["minutes"]) == len(series) == POINTS
    assert 0.45 < sum(series) / POINTS < 0.55 and run["series"]["entropy"][0] is None
    titles = {chart["key"]: chart["place"] for chart in data["charts"]}
    assert titles["episode_return_100"] == "charts" and titles["entropy"] == "own-charts"
    assert "loss" not in titles and "devices" not in titles


def test_metrics_of_the_algorithm_have_any_name_and_need_not_be_in_the_last_line(tmp_path: Path) -> None:
    made = [line(100, 1.0, **{"loss/policy": 2.0}), line(200, 1.0)]  # resumed, and stopped before its first update
    data = chart_data([read_run(make_run(tmp_path / "a", made))], ["a"], [])
    assert data["runs"][0]["series"]["loss/policy"] == [2, None]
    assert [chart["key"] for chart in data["charts"] if chart["place"] == "own-charts"] == ["loss/policy"]


def test_runs_are_named_by_what_tells_them_apart(tmp_path: Path) -> None:
    made = [read_run(make_run(tmp_path / name, [])) for name in ("pong/a", "pong/b", "other/a")]
    assert short_names(made) == ["pong/a", "pong/b", "other/a"]
    assert short_names(made[:2]) == ["a", "b"] and short_names(made[:1]) == ["a"]


@pytest.mark.skipif(not CHROMIUM, reason="no Chromium here (apt-get install chromium), so the page cannot be opened")
def test_the_page_works_in_a_browser(runs: list[str], tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    assert main(["report", *runs, "--threshold", "150", "--out", str(out)]) == 0
    with Browser(tmp_path / "profile") as browser:
        for width, dark in ((1280, False), (400, True)):
            browser.open(out, width, dark=dark)
            # Both runs' curves, with points, and nothing wider than the window.
            assert browser.run("document.querySelectorAll('#charts .chart.wide path.line').length") == 2
            assert browser.run("document.querySelectorAll('#charts path.line').length") == 4
            assert browser.run(
                "[...document.querySelectorAll('#charts path.line')].every(p => p.getTotalLength() > 50)"
            )
            assert browser.run("document.documentElement.scrollWidth") <= width
            assert browser.run("document.querySelectorAll('#charts .threshold').length") == 1
        paper = browser.run("getComputedStyle(document.body).backgroundColor")
        assert paper == "rgb(20, 23, 26)"
        frame = "document.querySelector('#charts svg').getBoundingClientRect()"
        browser.run("document.querySelector('#charts').scrollIntoView()")
        x, y = browser.run(f"[{frame}.left + {frame}.width - 17, {frame}.top + 100]")
        browser.point_at(x, y)
        tip = browser.run("document.querySelector('#charts .tip:not([hidden])').textContent")
        assert re.fullmatch(r"(99\d\d|10 k) stepstwo.*200one100", tip)  # both returns at the end, the higher first
        browser.run("document.querySelector('button[data-axis=minutes]').click()")
        assert "min" in browser.run("document.querySelector('#charts svg').textContent")
        browser.run("document.querySelector('button[data-run=\"1\"]').click()")
        assert browser.run("document.querySelectorAll('#charts .chart.wide path.line').length") == 1
        browser.run("document.querySelector('details:has(#own-charts)').open = true")
        browser.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        assert browser.run("document.querySelectorAll('#own-charts path.line').length") == 1
        assert [each for each in browser.complaints if "video" not in each.lower()] == []
        assert all(each.startswith(("file:", "data:")) for each in browser.requests)
