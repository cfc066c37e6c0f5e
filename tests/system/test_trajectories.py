"""A run whose observations stay on the inference device."""

from __future__ import annotations

from tests.system.harness import TINY, Fleet, metrics, sets


def test_a_run_is_the_same_whether_observations_stay_or_are_uploaded_again(fleet: Fleet) -> None:
    """To the byte, with one part of the processor for training and one for inference."""
    options = ["--preset", "cartpole_vtrace", "--steps", "1500", "--envs", "4", "--actors", "2", "--deterministic"]
    options += sets(*TINY, "training.unroll_length=4", "training.batch_size=4", "topology.virtual_devices=2")
    options += sets("topology.platform=cpu")
    runs = {
        setting: fleet.start(
            "train", *options, *sets(f"topology.device_trajectories={setting}"), "--logdir", setting
        )
        for setting in ("off", "on")
    }  # fmt: skip
    written = {}
    for setting, process in runs.items():
        process.ends_with(0)
        written[setting] = (fleet.folder / setting / "metrics.jsonl").read_bytes()
        said = "observations stay on CPU:1" in (fleet.folder / setting / "learner.log").read_text()
        assert said == (setting == "on")
    assert metrics(fleet.folder / "on")[-1]["learner_updates"] > 10
    assert written["on"] == written["off"]
