"""Checkpoints: atomic, checksummed, pruned, and refused for another agent."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tensorflow as tf

from seedcli.errors import CheckpointError, SeedError
from seedcli.specs import ActionSpec, ArraySpec, EnvSpec
from seedcli.training.checkpoint import Checkpointer, find_checkpoint, list_checkpoints, open_checkpoint, restore

SPEC = EnvSpec("test/env", ArraySpec((2,), "uint8"), ActionSpec((3,)))


def _variables(offset: float) -> dict[str, dict[str, tf.Variable]]:
    return {
        "agent": {
            "policy/kernel": tf.Variable(np.full((2, 3), offset, np.float32)),
            "value/kernel": tf.Variable(np.arange(4) + offset),
        },
        "optimizer": {"iterations": tf.Variable(np.int64(7 + offset))},
    }


def _writer(folder, groups, **kwargs) -> Checkpointer:
    options = {"keep": 3, "keep_every_hours": 0.0} | kwargs
    return Checkpointer(folder, "[run]\n", SPEC, groups, **options)


def _counters(env_steps: int) -> dict[str, int]:
    return {"env_steps": env_steps, "learner_updates": env_steps // 10}


def test_a_checkpoint_round_trips(tmp_path):
    saved = _variables(1.5)
    path = _writer(tmp_path, saved).save(_counters(120), wait=True)
    assert path == tmp_path / "120"
    checkpoint = find_checkpoint(tmp_path)
    assert (checkpoint.env_steps, checkpoint.spec) == (120, SPEC)
    assert checkpoint.counters["learner_updates"] == 12
    assert checkpoint.config_path.read_text() == "[run]\n"
    loaded = _variables(0.0)
    restore(checkpoint, loaded)
    for group in saved:
        for name, variable in saved[group].items():
            np.testing.assert_array_equal(loaded[group][name], variable)


def test_variables_of_one_shape_are_restored_by_name(tmp_path):
    left, right = tf.Variable([1.0, 2.0]), tf.Variable([3.0, 4.0])
    path = _writer(tmp_path, {"agent": {"left": left, "right": right}}).save(_counters(1), wait=True)
    found = {"right": tf.Variable([0.0, 0.0]), "left": tf.Variable([0.0, 0.0])}
    restore(open_checkpoint(path), {"agent": found})
    assert found["left"].numpy().tolist() == [1.0, 2.0] and found["right"].numpy().tolist() == [3.0, 4.0]


def test_two_variables_with_the_same_name_are_refused(tmp_path):
    variable = tf.Variable(0.0)
    with pytest.raises(AssertionError, match="two variables have the same name"):
        _writer(tmp_path, {"agent": {"network/bias": variable}, "agent/network": {"bias": variable}})


def test_variables_are_captured_at_the_call_not_at_the_write(tmp_path):
    groups = _variables(1.0)
    writer = _writer(tmp_path, groups)
    writer.save(_counters(1))
    groups["agent"]["policy/kernel"].assign(tf.fill((2, 3), 9.0))
    writer.wait()
    loaded = _variables(0.0)
    restore(open_checkpoint(tmp_path / "1"), loaded)
    np.testing.assert_array_equal(loaded["agent"]["policy/kernel"], np.ones((2, 3)))


def test_the_newest_are_kept(tmp_path):
    writer = _writer(tmp_path, _variables(1.0), keep=2)
    for steps in (5, 10, 100):
        writer.save(_counters(steps), wait=True)
    assert [p.name for p in list_checkpoints(tmp_path)] == ["10", "100"]


def test_one_checkpoint_per_given_hours_is_kept(tmp_path):
    writer = _writer(tmp_path, _variables(1.0), keep=1, keep_every_hours=1.0)
    for hour in range(5):
        path = writer.save(_counters(hour + 1), wait=True)
        # The recorded times are half an hour apart.
        state = json.loads((path / "state.json").read_text())
        state["time"] = 1_000_000.0 + 1800 * hour
        (path / "state.json").write_text(json.dumps(state))
    writer._prune()
    assert [p.name for p in list_checkpoints(tmp_path)] == ["1", "3", "5"]


@pytest.mark.parametrize("harm", ["flip", "truncate", "remove", "incomplete"])
def test_a_damaged_checkpoint_is_refused_and_the_one_before_it_used(tmp_path, harm, caplog):
    run = tmp_path / "run"
    writer = _writer(run / "checkpoints", _variables(1.0))
    writer.save(_counters(1), wait=True)
    newest = writer.save(_counters(2), wait=True)
    data = next(newest.glob("variables.data*"))
    if harm == "flip":
        content = bytearray(data.read_bytes())
        content[3] ^= 1
        data.write_bytes(content)
    elif harm == "truncate":
        data.write_bytes(data.read_bytes()[:-1])
    elif harm == "remove":
        data.unlink()
    else:
        (newest / "COMPLETE").unlink()
    with pytest.raises(CheckpointError, match=r"damaged|incomplete|cannot be read"):
        open_checkpoint(newest)
    assert find_checkpoint(run).env_steps == 1
    said = [record.getMessage() for record in caplog.records]
    assert (
        len(said) == 1 and str(newest) in said[0] and said[0].endswith(f"{run / 'checkpoints' / '1'} is used instead")
    )


def test_a_folder_without_a_checkpoint_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="no complete checkpoint"):
        find_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match="does not exist"):
        find_checkpoint(tmp_path / "missing")


@pytest.mark.parametrize("number", [1, 99])
def test_another_format_is_refused(tmp_path, number):
    path = _writer(tmp_path, _variables(1.0)).save(_counters(1), wait=True)
    state = json.loads((path / "state.json").read_text()) | {"format": number}
    (path / "state.json").write_text(json.dumps(state))
    import hashlib

    complete = json.loads((path / "COMPLETE").read_text())
    complete["blake2b"]["state.json"] = hashlib.blake2b((path / "state.json").read_bytes()).hexdigest()
    (path / "COMPLETE").write_text(json.dumps(complete))
    with pytest.raises(
        CheckpointError, match=rf"^the checkpoint {path} has format {number}, this version reads 2: [^.]*$"
    ):
        open_checkpoint(path)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"value/kernel": None}, "it has a variable agent/value/kernel, which this configuration does not have"),
        ({"value/bias": np.zeros(4)}, "it has no variable agent/value/bias, which this configuration has"),
        (
            {"policy/kernel": np.zeros((3, 2), np.float32)},
            "its variable agent/policy/kernel is float32 of shape (2, 3), "
            "but this configuration has float32 of shape (3, 2)",
        ),
        (
            {"value/kernel": np.zeros(4, np.float32)},
            "its variable agent/value/kernel is float64 of shape (4,), "
            "but this configuration has float32 of shape (4,)",
        ),
    ],
)
def test_another_agent_is_refused_and_nothing_of_it_restored(tmp_path, changed, sentence):
    checkpoint = open_checkpoint(_writer(tmp_path, _variables(1.0)).save(_counters(1), wait=True))
    arrays = {name: variable.numpy() for name, variable in _variables(0.0)["agent"].items()} | changed
    found = {name: tf.Variable(array) for name, array in arrays.items() if array is not None}
    with pytest.raises(CheckpointError) as refused:
        restore(checkpoint, {"agent": found})
    assert str(refused.value) == (
        f"the checkpoint {checkpoint.path} belongs to another agent: {sentence}; use the configuration and the "
        "version of seedcli that wrote it"
    )
    for name, variable in found.items():
        np.testing.assert_array_equal(variable, arrays[name])


def test_a_failing_disk_does_not_stop_training(tmp_path, monkeypatch):
    writer = _writer(tmp_path, _variables(1.0))
    writer.save(_counters(1), wait=True)

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("seedcli.training.checkpoint._write_variables", full)
    writer.save(_counters(2))
    writer.wait()
    assert isinstance(writer.error, OSError)
    assert find_checkpoint(tmp_path).env_steps == 1
    with pytest.raises(SeedError, match="No space left"):
        writer.save(_counters(3), wait=True)


class Attached:
    """Stands for a replay: writes the content that it had at the call."""

    def __init__(self) -> None:
        self.content: str | None = "first"
        self.error: OSError | None = None
        self.pruned: list[list[str]] = []

    def capture(self):
        content, error = self.content, self.error
        if content is None:
            return None

        def write(directory):
            if error is not None:
                (directory / "torn.txt").write_text("half")
                raise error
            (directory / "attached.txt").write_text(content)

        return write

    def prune(self, checkpoints):
        self.pruned.append([path.name for path in checkpoints])


def test_an_attachment_is_captured_at_the_call_and_checksummed(tmp_path):
    attached = Attached()
    writer = _writer(tmp_path, _variables(1.0), attachment=attached)
    path = writer.save(_counters(1))
    attached.content = "later"
    writer.wait()
    assert (path / "attached.txt").read_text() == "first"
    assert open_checkpoint(path).env_steps == 1
    (path / "attached.txt").write_text("other")
    with pytest.raises(CheckpointError, match=r"damaged \(checksum of attached.txt\)"):
        open_checkpoint(path)


def test_an_empty_attachment_adds_no_files(tmp_path):
    attached = Attached()
    attached.content = None
    path = _writer(tmp_path, _variables(1.0), attachment=attached).save(_counters(1), wait=True)
    plain = _writer(tmp_path / "plain", _variables(1.0)).save(_counters(1), wait=True)
    assert {p.name for p in path.iterdir()} == {p.name for p in plain.iterdir()}


def test_attachments_are_pruned_with_the_checkpoints(tmp_path):
    attached = Attached()
    writer = _writer(tmp_path, _variables(1.0), keep=2, attachment=attached)
    for steps in (5, 10, 100):
        writer.save(_counters(steps), wait=True)
    assert attached.pruned == [["5"], ["5", "10"], ["10", "100"]]


def test_an_attachment_that_cannot_be_written_is_left_out(tmp_path, caplog):
    attached = Attached()
    writer = _writer(tmp_path, _variables(1.0), attachment=attached)
    attached.error = OSError(28, "No space left on device")
    path = writer.save(_counters(2), wait=True)
    assert writer.error is None and "is written without the replay" in caplog.text and "No space left" in caplog.text
    assert find_checkpoint(tmp_path).env_steps == 2
    assert not (path / "attached.txt").exists() and not (path / "torn.txt").exists(), "no partial file is left"
    attached.error = None
    path = writer.save(_counters(4), wait=True)
    assert (path / "attached.txt").exists() and find_checkpoint(tmp_path).env_steps == 4


def test_attachments_of_permanently_kept_checkpoints_are_pruned(tmp_path):
    attached = Attached()
    writer = _writer(tmp_path, _variables(1.0), keep=1, attachment=attached, keep_every_hours=1.0)
    for steps in (5, 10):
        writer.save(_counters(steps), wait=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["10", "5"], "the first is kept permanently"
    assert attached.pruned[-1] == ["10"]
