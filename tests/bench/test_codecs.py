"""`seed bench codecs` and `seed bench actor`, on real environments."""

from __future__ import annotations

import json

import pytest

from seedcli.bench.actor import measure_actor, run_bench_actor
from seedcli.bench.codecs import run_bench_codecs
from seedcli.config.schema import make_config
from seedcli.errors import UsageError
from seedcli.net.codecs import CODECS

SHARES = ("simulator", "adapter", "encoding", "rest")


@pytest.mark.slow
def test_bench_codecs_measures_every_installed_environment(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_bench_codecs(json_output=True) == 0
    result = json.loads(capsys.readouterr().out)
    assert list(result["environments"]) == ["CartPole", "Pong", "Breakout", "football"]
    for name, figures in result["environments"].items():
        if name == "football" and "missing" in figures:
            continue
        for codec, cost in figures["codecs"].items():
            assert codec in CODECS and 0 < cost["bytes"] <= figures["raw_bytes"]
            assert cost["ratio"] == pytest.approx(cost["bytes"] / figures["raw_bytes"])
            assert (cost["pays_below_mbit"] is None) == (codec == "raw")
        chosen = figures["codecs"][figures["auto"]]
        if name == "CartPole":
            assert figures["auto"] == "raw" and figures["codecs"]["zstd"]["pays_below_mbit"] == 0
        elif name == "football":
            assert chosen["bytes"] * 16 <= 4 * figures["raw_bytes"], "of the stacked planes"
            assert figures["codecs"]["bits"]["bytes"] * 8 == figures["raw_bytes"]
        else:
            assert figures["auto"] == "zstd" and chosen["ratio"] <= 1 / 6 and chosen["share_of_step"] < 0.1
            assert chosen["pays_below_mbit"] > 1000


def test_bench_codecs_table_fits_100_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cost = {
        "bytes": 3456.0, "ratio": 1 / 484, "encode_us": 12.34, "decode_us": 12.34, "share_of_step": 0.99,
        "pays_below_mbit": 42729.4,
    }  # fmt: skip
    figures = {
        "array": "observation", "envs": 8, "raw_bytes": 27648, "step_us": 5661.3, "auto": "bits+zstd",
        "codecs": dict.fromkeys(CODECS, cost),
    }  # fmt: skip
    found = {"football": figures, "CartPole": {"missing": "it is not installed"}}
    monkeypatch.setattr("seedcli.bench.codecs.measure_codecs", lambda: found)
    assert run_bench_codecs(json_output=False) == 0
    out = capsys.readouterr().out
    assert "CartPole: it is not installed" in out and "110,592 bytes" in out and "42,729 Mbit/s" in out
    assert max(len(line.rstrip()) for line in out.splitlines() if "Mbit/s" in line or "codec" in line) <= 100


@pytest.mark.parametrize("shares_memory", [True, False])
def test_an_actor_that_never_waits_spends_its_time_in_the_simulator(shares_memory) -> None:
    config = make_config({"environment": {"family": "atari", "id": "pong"}, "actors": {"envs": 16, "streams": 2}})
    figures = measure_actor(config, shares_memory, 1.5)
    assert sum(figures[share] for share in SHARES) == pytest.approx(1, abs=0.02)
    assert all(figures[share] >= 0 for share in SHARES) and figures["steps_per_second"] > 0
    assert figures["simulator"] >= 0.85
    if not shares_memory:
        assert figures["codecs"] == {"observation": "zstd"} and figures["bytes_per_step"] < 7056 / 6
    else:
        assert figures["codecs"] == {"observation": "raw"} and figures["bytes_per_step"] > 7056
        assert figures["encoding"] == 0


def test_bench_actor_measures_shared_memory_and_network(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="family gymnasium has no vector environment"):
        run_bench_actor(make_config(), seconds=0.1, json_output=True)
    config = make_config({"environment": {"family": "atari", "id": "pong"}, "actors": {"envs": 4}})
    assert run_bench_actor(config, seconds=0.2, json_output=True) == 0
    result = json.loads(capsys.readouterr().out)
    assert set(result["ways"]) == {"shared memory", "over a network"}
    assert run_bench_actor(config, seconds=0.1, json_output=False) == 0
    assert "simulator" in capsys.readouterr().out
