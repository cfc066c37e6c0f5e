"""Assignment of devices: every preset on several machines, the meaning of "auto", and what is refused."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seedcli.config.presets import preset_names
from seedcli.config.schema import Config
from seedcli.config.sections import TopologyConfig, TrainingConfig
from seedcli.config.sources import load_config
from seedcli.config.topology import Inventory, Plan, make_plan
from seedcli.errors import UsageError

LAPTOP = Inventory(cores=2)
ONE_GPU = Inventory(gpus=1, cores=8, models=("a GPU",))
EIGHT_GPUS = Inventory(gpus=8, cores=64, models=("a GPU",) * 8)
EIGHT_TPUS = Inventory(tpus=8, cores=96)
MACHINES = {"laptop": LAPTOP, "1gpu": ONE_GPU, "8gpu": EIGHT_GPUS, "tpu8": EIGHT_TPUS}
VARIANTS = [name for name in preset_names() if name.rsplit("_", 1)[1] in MACHINES]


def config(batch: int = 32, minibatches: int = 1, **topology: Any) -> Config:
    training = TrainingConfig(batch_size=batch, minibatches=minibatches)
    return Config(training=training, topology=TopologyConfig(**topology))


def refusal(wanted: Config, inventory: Inventory) -> str:
    with pytest.raises(UsageError) as caught:
        make_plan(wanted, inventory)
    message = str(caught.value)
    assert "\n" not in message
    return message


def two_hosts(**more: Any) -> dict[str, Any]:
    return {"hosts": ("one:8690", "two:8690"), "trust_network": True, **more}


def of_the_environment(config: Config, *hosts: str) -> Config:
    """Set hosts as TF_CONFIG or a SLURM step does, after the configuration was validated."""
    return config.model_copy(update={"topology": config.topology.model_copy(update={"hosts": hosts})})


# Presets ----------------------------------------------------------------------------------------------------------


def test_three_presets_have_variants_for_three_machines() -> None:
    bases = ("atari_r2d2", "dmlab_vtrace", "football_vtrace")
    assert VARIANTS == [f"{base}_{machine}" for base in bases for machine in ("1gpu", "8gpu", "tpu8")]


@pytest.mark.parametrize("name", VARIANTS)
def test_plan_of_a_variant_on_its_machine(name: str) -> None:
    base, machine = name.rsplit("_", 1)
    config = load_config(name, environ={}).config
    batch = {"atari_r2d2": 64, "dmlab_vtrace": 32, "football_vtrace": 32}[base]
    expected = {
        "1gpu": Plan(platform="gpu", devices=1, training=(0,), inference=(0,), columns=batch),
        "8gpu": Plan("gpu", devices=8, training=(0, 1, 2, 3), inference=(4, 5, 6, 7), columns=batch // 4),
        "tpu8": Plan(
            "tpu",
            devices=8,
            training=(0, 1, 2, 3),
            inference=(4, 5, 6, 7),
            columns=batch // 4,
            precision="mixed_bfloat16",
        ),
    }
    assert make_plan(config, MACHINES[machine]) == expected[machine]


@pytest.mark.parametrize("name", VARIANTS)
def test_variant_changes_only_devices_and_padding(name: str) -> None:
    base, machine = name.rsplit("_", 1)
    varied, plain = (load_config(preset, environ={}).config.model_dump() for preset in (name, base))
    assert varied["run"].pop("preset") == name and plain["run"].pop("preset") == base
    sizes = varied["inference"].pop("pad_to")
    assert plain["inference"].pop("pad_to") == () and 3 <= len(sizes) <= 4
    assert machine != "tpu8" or all(size % 8 == 0 for size in sizes)
    assert varied.pop("topology") != plain.pop("topology")
    assert varied == plain


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("machine", MACHINES)
def test_variant_is_refused_on_other_machines(name: str, machine: str) -> None:
    own = name.rsplit("_", 1)[1]
    config = load_config(name, environ={}).config
    if own == machine or (own, machine) == ("1gpu", "8gpu"):
        make_plan(config, MACHINES[machine])
    elif (own, machine) == ("8gpu", "1gpu"):
        assert refusal(config, ONE_GPU).startswith("topology.inference_devices = 4 is more than the 1 GPU of this mac")
    else:
        platform = config.topology.platform
        sentence = (
            f"topology.platform = {platform} needs a {platform.upper()}, and TensorFlow finds none on this machine"
        )
        assert refusal(config, MACHINES[machine]).startswith(sentence)


@pytest.mark.parametrize("name", [name for name in preset_names() if name not in VARIANTS])
@pytest.mark.parametrize("machine", MACHINES)
def test_preset_without_topology_uses_available_devices(name: str, machine: str) -> None:
    config = load_config(name, environ={}).config
    batch = config.training.batch_size
    platform = {"laptop": "cpu", "tpu8": "tpu"}.get(machine, "gpu")
    if machine in ("laptop", "1gpu"):
        expected = Plan(platform=platform, devices=1, training=(0,), inference=(0,), columns=batch)  # type: ignore[arg-type]
    else:
        # Minibatch sizes are powers of two, which six does not divide, and each device needs a column of every one.
        number = min(4, batch // config.training.minibatches)
        training, inference = tuple(range(number)), tuple(range(number, 8))
        expected = Plan(platform, devices=8, training=training, inference=inference, columns=batch // number)  # type: ignore[arg-type]
    assert make_plan(config, MACHINES[machine]) == expected


# The meaning of "auto" --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gpus", "training", "inference", "expected"),
    [
        (1, "auto", "auto", ((0,), (0,))),
        (2, "auto", "auto", ((0,), (1,))),
        (3, "auto", "auto", ((0, 1), (2,))),
        (4, "auto", "auto", ((0, 1, 2), (3,))),
        (8, "auto", "auto", ((0, 1, 2, 3, 4, 5), (6, 7))),
        (8, "auto", 1, ((0, 1, 2, 3, 4, 5), (7,))),
        (8, "auto", 5, ((0, 1, 2), (3, 4, 5, 6, 7))),
        (8, 2, "auto", ((0, 1), (2, 3, 4, 5, 6, 7))),
        (8, 8, "auto", (tuple(range(8)), tuple(range(8)))),
        (8, "auto", 8, (tuple(range(8)), tuple(range(8)))),
        (4, 3, 2, ((0, 1, 2), (2, 3))),
        (4, 1, 1, ((0,), (3,))),
        (4, 4, 4, ((0, 1, 2, 3), (0, 1, 2, 3))),
    ],
)
def test_shares(gpus: int, training: Any, inference: Any, expected: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    """The batch size is a multiple of 2, 3, 4, 6 and 8."""
    plan = make_plan(config(48, training_devices=training, inference_devices=inference), Inventory(gpus=gpus))
    assert (plan.training, plan.inference) == expected
    assert plan.columns * len(plan.training) == 48
    assert plan.shared == tuple(sorted({*expected[0]} & {*expected[1]}))


@given(st.integers(1, 16), st.integers(1, 200), st.sampled_from(["auto", 1, 2, 5]), st.sampled_from(["auto", 1, 3]))
def test_plans_satisfy_their_invariants(gpus: int, batch: int, training: Any, inference: Any) -> None:
    wanted = config(batch, training_devices=training, inference_devices=inference)
    asked = [number for number in (training, inference) if number != "auto"]
    if any(number > gpus for number in asked) or (training != "auto" and batch % training):
        with pytest.raises(UsageError):
            make_plan(wanted, Inventory(gpus=gpus))
        return
    plan = make_plan(wanted, Inventory(gpus=gpus))
    assert plan.training == tuple(range(len(plan.training))) and plan.training
    assert plan.inference == tuple(range(gpus - len(plan.inference), gpus)) and plan.inference
    assert plan.columns * len(plan.training) == batch
    assert training == "auto" or len(plan.training) == training
    assert inference == "auto" or len(plan.inference) == inference
    if asked == [] and gpus > 1:
        assert plan.shared == () and len(plan.training) + len(plan.inference) == gpus


def test_cpu_is_one_device_or_virtual_devices() -> None:
    assert make_plan(config(), LAPTOP) == Plan("cpu", devices=1, training=(0,), inference=(0,), columns=32)
    split = make_plan(config(platform="cpu", virtual_devices=4), EIGHT_GPUS)
    assert split == Plan("cpu", devices=4, training=(0, 1), inference=(2, 3), columns=16, virtual=True)
    assert split.name(3) == "CPU:3"


def test_auto_prefers_accelerators_and_platform_overrides() -> None:
    assert make_plan(config(), Inventory(gpus=2, tpus=8)).platform == "tpu"
    assert make_plan(config(platform="gpu"), Inventory(gpus=2, tpus=8)).platform == "gpu"
    assert make_plan(config(platform="cpu"), EIGHT_GPUS) == make_plan(config(), LAPTOP)


def test_hosts_share_a_batch() -> None:
    plan = make_plan(config(64, training_devices=2, inference_devices=1, **two_hosts(host_index=1)), EIGHT_GPUS)
    assert (plan.num_hosts, plan.host_index, plan.columns, plan.training) == (2, 1, 16, (0, 1))
    assert make_plan(config(hosts=("alone:8690",)), LAPTOP) == make_plan(config(), LAPTOP)
    split = make_plan(config(4, platform="cpu", virtual_devices=4, **two_hosts()), LAPTOP)
    assert (split.training, split.inference, split.columns) == ((0,), (1, 2, 3), 2)
    # "auto" splits the host's part of the batch: 6 unrolls over 6 devices, 5 unrolls over 5.
    assert len(make_plan(config(12, **two_hosts()), EIGHT_GPUS).training) == 6
    assert len(make_plan(config(10, **two_hosts()), EIGHT_GPUS).training) == 5


# Error messages ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "inventory", "sentence"),
    [
        (
            config(training_devices=4),
            Inventory(gpus=2, whose="node7"),
            "topology.training_devices = 4 is more than the 2 GPUs of node7: lower it",
        ),
        (
            config(inference_devices=2),
            LAPTOP,
            "topology.inference_devices = 2 is more than the 1 CPU of this machine: lower it, or set "
            "topology.virtual_devices to test it on the CPU",
        ),
        (
            config(32, training_devices=3),
            EIGHT_GPUS,
            "training.batch_size = 32 must be a multiple of 3, 3 training devices: every device trains on the same "
            "number of unrolls, so change one of the two",
        ),
        (
            config(32, training_devices=3, **two_hosts()),
            EIGHT_GPUS,
            "training.batch_size = 32 must be a multiple of 6, 3 training devices on each of 2 hosts: every device "
            "trains on the same number of unrolls, so change one of the two",
        ),
        (
            of_the_environment(config(33), "one:8690", "two:8690"),
            EIGHT_GPUS,
            "training.batch_size = 33 must be a multiple of 2, the number of topology.hosts: every host trains on the "
            "same number of unrolls",
        ),
        (
            config(32, 4, training_devices=3),
            EIGHT_GPUS,
            "training.batch_size = 32 must be a multiple of 12, training.minibatches = 4 times 3 training devices: "
            "every device trains on minibatches of the same number of unrolls, so change one of them",
        ),
        (
            config(32, 4, training_devices=3, **two_hosts()),
            EIGHT_GPUS,
            "training.batch_size = 32 must be a multiple of 24, training.minibatches = 4 times 3 training devices on "
            "each of 2 hosts: every device trains on minibatches of the same number of unrolls, so change one of them",
        ),
        (
            of_the_environment(config(36, 4), *(f"{name}:8690" for name in "abcdef")),
            EIGHT_GPUS,
            "training.batch_size = 36 must be a multiple of 24, training.minibatches = 4 times the number of "
            "topology.hosts: every host trains on minibatches of the same number of unrolls, so change one of them",
        ),
        (
            config(32, platform="cpu", virtual_devices=2, training_devices=2, **two_hosts()),
            LAPTOP,
            "topology.training_devices = 2 must be 1 on the CPUs of 2 topology.hosts: TensorFlow supports one "
            "training device per CPU host",
        ),
        (
            config(32, **two_hosts()),
            EIGHT_TPUS,
            "topology.platform = tpu must not be used with 2 topology.hosts: the cores of a TPU belong to one host, so "
            "remove topology.hosts",
        ),
        (
            config(precision="mixed_float16"),
            LAPTOP,
            "topology.precision = mixed_float16 is for GPUs, and this machine trains on its CPU: use mixed_bfloat16 or "
            "float32",
        ),
        (
            config(platform="tpu"),
            EIGHT_GPUS,
            "topology.platform = tpu needs a TPU, and TensorFlow finds none on this machine: use another platform "
            "(seed doctor lists the devices)",
        ),
    ],
)
def test_misfit_is_refused_with_the_numbers(wanted: Config, inventory: Inventory, sentence: str) -> None:
    assert refusal(wanted, inventory) == sentence


@pytest.mark.parametrize(
    ("topology", "words"),
    [
        ({"virtual_devices": 2}, "topology.virtual_devices = 2 needs topology.platform = cpu"),
        (
            {"platform": "tpu", "precision": "mixed_float16"},
            "mixed_float16 must not be used with topology.platform = t",
        ),
        ({"host_index": 1}, "topology.host_index = 1 must be below 1, the number of topology.hosts"),
        (two_hosts(host_index=2), "topology.host_index = 2 must be below 2"),
        (two_hosts(trust_network=False), "need --trust-network"),
        (two_hosts(platform="tpu"), "topology.platform = tpu must not be used with 2 topology.hosts"),
        (two_hosts(batch=33), "training.batch_size = 33 must be a multiple of 2, the number of topology.hosts"),
        ({"batch": 33, "minibatches": 2}, "training.batch_size = 33 must be a multiple of training.minibatches = 2: "),
        (two_hosts(hosts=("one:1", "two")), 'must each be host:port, such as "node1:8690", and "two" is not'),
        (two_hosts(hosts=("one:1", "one:1")), 'must be different hosts or ports, and "one:1" is listed twice'),
    ],
)
def test_invalid_settings_on_any_machine(topology: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError) as caught:
        config(**topology)
    assert words in str(caught.value)


@pytest.mark.parametrize("hosts", [("a:1", "b:65535"), ("[fe80::1%eth0]:1", "[::1]:2"), ("10.0.0.1:1", "n-1.x.y:2")])
def test_valid_forms_of_hosts(hosts: tuple[str, ...]) -> None:
    assert config(hosts=hosts, trust_network=True).topology.hosts == hosts


def test_one_device_described() -> None:
    assert make_plan(config(), ONE_GPU).describe() == [
        "1 GPU",
        "training on GPU:0: 32 unrolls of a batch",
        "inference on GPU:0, shared with training",
        "precision float32; XLA off",
    ]


def test_many_devices_described() -> None:
    wanted = config(training_devices=4, inference_devices=2, publish_every=3, xla="training")
    assert make_plan(wanted, EIGHT_GPUS).describe() == [
        "8 GPUs",
        "training on GPU:0 to GPU:3: 8 unrolls of a batch each",
        "inference on GPU:6, GPU:7",
        "weights are copied to inference every 3 updates",
        "idle: GPU:4, GPU:5",
        "precision float32; XLA training",
    ]
    overlapping = make_plan(config(32, training_devices=4, inference_devices=6), EIGHT_GPUS).describe()
    assert "inference on GPU:2 to GPU:7; GPU:2, GPU:3 shared with training" in overlapping


def test_hosts_and_virtual_devices_described() -> None:
    lines = make_plan(config(2, platform="cpu", virtual_devices=2, **two_hosts()), LAPTOP).describe()
    assert lines[:3] == [
        "2 CPUs (virtual devices of the CPU) on each of 2 hosts",
        "this is host 0 of one:8690, two:8690, the chief",
        "training on CPU:0: 1 unroll of a batch",
    ]
    lines = make_plan(config(**two_hosts(host_index=1)), EIGHT_GPUS).describe()
    assert lines[1] == "this is host 1 of one:8690, two:8690; the chief is one:8690"
    assert make_plan(config(), EIGHT_TPUS).describe()[-1] == "precision float32; XLA on, as always on a TPU"


def test_make_plan_does_not_import_tensorflow() -> None:
    script = "import sys, seedcli.config.topology; sys.exit(len({'tensorflow', 'keras', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", script], timeout=60).returncode == 0


def test_auto_trains_on_as_many_devices_as_a_minibatch_can_be_split_over() -> None:
    assert len(make_plan(config(32), EIGHT_GPUS).training) == 4
    plan = make_plan(config(32, 16), EIGHT_GPUS)
    assert (plan.training, plan.columns) == ((0, 1), 16)
    assert len(make_plan(config(32, 32), EIGHT_GPUS).training) == 1
