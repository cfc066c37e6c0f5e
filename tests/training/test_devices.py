"""Several devices and several hosts train like one; wrong aggregation is detected."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from seedcli.config.topology import Plan
from seedcli.errors import SeedError, UsageError
from seedcli.training.devices import Devices, batch_bytes
from tests.system.hosts import free_addresses
from tests.training.on_devices import AGENTS, DEVICES, TRAINING, UPDATES, B, batches, make

pytestmark = pytest.mark.timeout(600)  # a process that traces many updates for several devices, on a busy machine

ROOT = Path(__file__).parents[2]
LIMIT = 500.0  # seconds
TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}


def _start(folder: Path, *arguments: str) -> Callable[[], Any]:
    """Run `on_devices` in a separate process; returns a function that waits for its results."""
    output, log = folder / "found", folder / "log"
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.training.on_devices", str(output), *arguments], cwd=ROOT, stderr=errors
        )

    def result() -> Any:
        try:
            status = process.wait(LIMIT)
        finally:
            process.kill()
            process.wait()
        assert status == 0, log.read_text(errors="replace")[-3000:]
        return pickle.loads(output.read_bytes())  # noqa: S301 - written by our own process

    return result


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[Any, Any]:
    """The results of one host with 8 virtual devices."""
    result: dict[Any, Any] = _start(tmp_path_factory.mktemp("devices"))()
    return result


def _differs(one: dict[str, Any], other: dict[str, Any]) -> bool:
    try:
        _assert_same(one, other)
    except AssertionError:
        return True
    return False


def _assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    for mine, theirs in zip(one["results"], other["results"], strict=True):
        assert mine["applied"] and theirs["applied"]
        np.testing.assert_allclose(mine["loss"], theirs["loss"], **TOLERANCE)
        np.testing.assert_allclose(mine["grad_norm"], theirs["grad_norm"], **TOLERANCE)
        if theirs["priorities"] is not None:
            np.testing.assert_allclose(mine["priorities"], theirs["priorities"], **TOLERANCE)
    for mine, theirs in zip(one["variables"], other["variables"], strict=True):
        np.testing.assert_allclose(mine, theirs, **TOLERANCE)


@pytest.mark.parametrize("algorithm, devices", [(name, number) for name in AGENTS for number in DEVICES[name]])
def test_several_devices_train_like_one(found: dict[Any, Any], algorithm: str, devices: int) -> None:
    one, several = found[algorithm, 0], found[algorithm, devices]
    _assert_same(several, one)
    assert several["trained_steps"] == one["trained_steps"] > 0
    clipped = [result["grad_norm"] > TRAINING[algorithm].clip_norm for result in one["results"]]
    assert len(clipped) == UPDATES and sum(clipped) > UPDATES // 2
    assert several["results"][0]["metrics"].keys() == one["results"][0]["metrics"].keys()
    if algorithm == "r2d2":
        assert one["results"][0]["priorities"].shape == (B,)
    if devices == 1:
        for mine, theirs in zip(several["variables"], one["variables"], strict=True):
            np.testing.assert_array_equal(mine, theirs)


def test_target_critics_and_temperature_are_among_what_two_devices_train(found: dict[Any, Any]) -> None:
    """Otherwise the comparison above would say nothing about them."""
    values = dict(zip(found["sac", 2]["names"], found["sac", 2]["variables"], strict=False))
    pairs = [name for name in values if name.startswith("critics/") and name.endswith("kernel")]
    assert pairs and all((values[name] != values[f"target_{name}"]).any() for name in pairs)
    assert values["temperature/log"] != 0.0 and values["updates"] == UPDATES


@pytest.mark.parametrize("wrong", ["divided by the local batch", "clipped before the sum"])
def test_wrong_aggregation_is_detected(found: dict[Any, Any], wrong: str) -> None:
    assert _differs(found[wrong], found["r2d2", 0])


def test_an_update_compiled_by_xla_is_the_same(found: dict[Any, Any]) -> None:
    _assert_same(found["xla"], found["r2d2", 0])


def test_all_devices_drop_an_update_that_is_non_finite_on_one(found: dict[Any, Any]) -> None:
    drop = found["drop"]
    assert not drop["result"]["applied"] and drop["result"]["fault"] == "the loss" and drop["dropped"] == 1
    assert np.isfinite(drop["result"]["priorities"][:-1]).all() and np.isnan(drop["result"]["priorities"][-1])
    count = len(drop["trainable"])
    for trainable, before, after in zip(drop["trainable"], drop["before"], drop["after"], strict=False):
        if trainable:
            np.testing.assert_array_equal(before, after)
    for before, after in zip(drop["before"][2 * count :], drop["after"][2 * count :], strict=True):
        np.testing.assert_array_equal(before, after)  # of the optimizer
    assert drop["again"], "training continues"
    for copies in drop["copies"]:
        assert len(copies) == 4
        for copy in copies:
            np.testing.assert_array_equal(copy, copies[0])


@pytest.mark.parametrize("form", ["loop", "unrolled", "stop"])
def test_minibatches_on_two_devices_train_like_those_on_one(found: dict[Any, Any], form: str) -> None:
    """Two groups with targets and averages; the minibatch with a non-finite column is dropped on all devices."""
    several, one = (found["minibatches"][form, number] for number in (2, 1))
    updates = 6 if form != "unrolled" else 4
    batches = len(one["results"])
    # The minibatch of the second batch that holds the non-finite column is dropped in every epoch.
    stopped = 6 - 3 if form == "stop" else 0  # 12 updates are made: 6, 3 of 6, and 3 of the third batch
    dropped = updates // 2
    assert several["counts"] == one["counts"] == (batches * updates - dropped - stopped, dropped)
    for mine, theirs in zip(several["results"], one["results"], strict=True):
        assert (mine["applied"], mine["fault"]) == (theirs["applied"], theirs["fault"])
        assert mine["metrics"] == pytest.approx(theirs["metrics"], rel=1e-4, abs=1e-5, nan_ok=True)
        np.testing.assert_allclose(mine["loss"], theirs["loss"], **TOLERANCE)
        np.testing.assert_allclose(mine["grad_norm"], theirs["grad_norm"], **TOLERANCE)
    assert ("updates_used" in one["results"][0]["metrics"]) == (form == "stop")
    for mine, theirs in zip(several["variables"], one["variables"], strict=True):
        np.testing.assert_allclose(mine, theirs, **TOLERANCE)


def test_recurrent_minibatches_on_two_devices_train_like_those_on_one(found: dict[Any, Any]) -> None:
    several, one = (found["minibatches"]["vtrace", number] for number in (2, 1))
    _assert_same(several, one)
    assert _differs(one, found["vtrace", 0]), "six updates on each batch are not one"


@pytest.mark.parametrize("place", ["outside", "inside"])
def test_target_networks_are_equal_on_all_devices(found: dict[Any, Any], place: str) -> None:
    for name, share in (("copy", 1.0), ("average", 0.25)):
        before, source, after = found["target networks"][name, place]
        for old, new, copies in zip(before, source, after, strict=True):
            assert len(copies) == 4
            for copy in copies:
                np.testing.assert_allclose(copy, (1.0 - share) * old[0] + share * new[0], rtol=1e-6)


def test_each_device_gets_its_columns(found: dict[Any, Any]) -> None:
    unrolls = found["batches"][0].unrolls
    assert len(found["placed"]) == 4
    for i, part in enumerate(found["placed"]):
        columns = slice(2 * i, 2 * i + 2)
        assert part["devices"] == {f"CPU:{i}"}
        np.testing.assert_array_equal(part["reward"], unrolls.reward[:, columns])
        np.testing.assert_array_equal(part["hidden"], unrolls.state["lstm_hidden"][columns])
        np.testing.assert_array_equal(part["weights"], unrolls.weights[columns])


def test_devices_are_those_of_the_plan(found: dict[Any, Any]) -> None:
    assert found["names"] == (("CPU:0", "CPU:1", "CPU:2", "CPU:3"), ("CPU:7",))
    assert found["elsewhere"] == {"CPU:5"}
    inventory = found["inventory"]
    assert inventory.cores >= 1 and len(inventory.models) == inventory.gpus + inventory.tpus
    name, sentence = found["too late"]
    assert name == "SeedError" and "has already started" in sentence


def test_a_host_counts_once_with_any_number_of_devices(found: dict[Any, Any]) -> None:
    integers, floats = found["sum"]
    assert integers.tolist() == [3, 5] and integers.dtype == np.int64 and floats.tolist() == [0.5]
    before, after = found["broadcast"]
    for one, other in zip(before, after, strict=True):
        np.testing.assert_array_equal(one, other)


def test_two_hosts_train_like_one(found: dict[Any, Any], tmp_path: Path) -> None:
    """Each has half of every batch, and the chief's weights; if one has no batch, no host trains."""
    addresses = free_addresses(2)
    waiting = []
    for index in range(2):
        folder = tmp_path / str(index)
        folder.mkdir()
        waiting.append(_start(folder, str(index), *addresses))
    hosts = [wait() for wait in waiting]
    one = found["r2d2", 0]
    for index, host in enumerate(hosts):
        made = [result for result in host["results"] if not result["control"][0]]
        skipped = [result for result in host["results"] if result["control"][0]]
        assert len(made) == UPDATES and len(skipped) == 4
        assert not any(result["applied"] or result["fault"] or result["priorities"] is not None for result in skipped)
        assert {tuple(result["control"][1:]) for result in host["results"]} == {(21.0,)}
        priorities = [result["priorities"][index * B // 2 : (index + 1) * B // 2] for result in one["results"]]
        expected = [{**whole, "priorities": mine} for whole, mine in zip(one["results"], priorities, strict=True)]
        _assert_same({**host, "results": made}, {**one, "results": expected})
    assert sum(host["trained_steps"] for host in hosts) == one["trained_steps"]


def test_one_device_of_one_host_needs_no_strategy() -> None:
    devices = Devices.default()
    assert (devices.training, devices.inference, devices.replicas, devices.distributed) == (("",), ("",), 1, False)
    assert devices.chief and devices.strategy is tf.distribute.get_strategy()
    with devices.scope():
        assert not tf.distribute.has_strategy()
    agent, trainer = make("vtrace", devices)
    (batch,) = batches(agent, 1)
    placed = devices.place(batch.unrolls)
    assert all(isinstance(leaf, tf.Tensor) for leaf in tf.nest.flatten(placed))
    assert batch_bytes(placed) == batch_bytes(batch.unrolls) == sum(x.nbytes for x in tf.nest.flatten(batch.unrolls))
    (control,) = trainer.sum_over_hosts([np.array([1.0])])
    assert control == 1.0
    with pytest.raises(ValueError, match="without a batch"):
        trainer.update(None, env_steps=0)


def test_place_out_of_memory_reports_the_size_of_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*_: Any) -> None:
        message = "OOM when allocating tensor on /job:localhost/replica:0/task:0/device:GPU:1 by allocator GPU_1_bfc"
        raise tf.errors.ResourceExhaustedError(None, None, message)

    devices = Devices.default()
    agent, _ = make("vtrace", devices)
    (batch,) = batches(agent, 1)
    nbytes = batch_bytes(batch.unrolls)
    monkeypatch.setattr(tf, "convert_to_tensor", exhausted)
    monkeypatch.setattr(tf.config.experimental, "get_memory_info", lambda device: {"peak": 2_000_000_000})
    with pytest.raises(SeedError) as raised:
        devices.place(batch.unrolls)
    assert raised.value.exit_status == 1
    assert str(raised.value) == (
        "GPU:1 ran out of memory while copying a training batch (TensorFlow's peak: 2,000.0 MB): it must "
        f"hold a batch of {B} unrolls ({nbytes / 1e3:.1f} kB), the previous batch and training and inference on the "
        "same device; "
        "lower training.batch_size, training.unroll_length or inference.max_envs, or let other devices infer"
    )


def test_a_missing_tpu_is_a_usage_error() -> None:
    if tf.config.list_physical_devices("TPU"):
        pytest.skip("there is a TPU here")
    with pytest.raises(UsageError, match="finds no TPU"):
        Devices(Plan("tpu", 8, (0, 1), (7,), columns=4))
