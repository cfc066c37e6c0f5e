"""Layers of a configuration, their order and the sources of values; every error is one sentence."""

import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seedcli.config.flags import FLAG_KEYS
from seedcli.config.known_keys import all_keys, owners
from seedcli.config.presets import preset_names, presets
from seedcli.config.schema import keys_of, make_config
from seedcli.config.sources import (
    Resolved,
    describe,
    from_toml_file,
    load_config,
    to_toml,
    without_effect,
)
from seedcli.errors import UsageError


def load(preset: str | None = "cartpole_vtrace", **layers: object) -> Resolved:
    return load_config(preset, **{"environ": {}, **layers})  # type: ignore[arg-type]


def refusal(preset: str | None = "cartpole_vtrace", **layers: object) -> str:
    with pytest.raises(UsageError) as caught:
        load(preset, **layers)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_is_valid_and_described(name: str) -> None:
    resolved = load(name)
    about = presets()[name]
    assert resolved.config.run.preset == name
    assert about.description
    assert resolved.sources["run.steps"] == f"preset {about.base or name}"
    assert resolved.sources["net.host"] == "default"


def test_expected_presets_exist() -> None:
    assert {"cartpole_vtrace", "pong_vtrace", "atari_vtrace"} <= set(preset_names())
    assert {"cartpole_memory_r2d2", "recall_r2d2", "pong_r2d2", "atari_r2d2"} <= set(preset_names())
    atari = load("atari_vtrace", flags={"--env": "breakout"}).config
    assert (atari.environment.id, atari.environment.full_action_set, atari.agent.network.torso) == (
        "breakout",
        True,
        "nature",
    )


def task_keys(resolved: Resolved) -> list[str]:
    """Keys that define the task, without those for the handling of failures."""
    keys = [key for key in resolved.sources if key.startswith("environment.")]
    return [key for key in keys if key not in ("environment.restarts", "environment.step_timeout")]


def test_each_choice_has_its_own_keys() -> None:
    of = owners()
    assert of["environment.rewards"] == ('environment.family = "football"',)
    assert of["environment.height"] == ('environment.family = "atari"', 'environment.family = "dmlab"')
    assert of["agent.n_step"] == ('agent.algorithm = "r2d2"',)
    assert of["agent.network.channels"] == ('agent.network.torso = "impala_deep"',)
    assert "environment.rewards" not in load("pong_vtrace").sources
    assert "agent.network.channels" in load("football_vtrace").sources and "run.seed" not in of


def test_a_deep_network_has_a_stage() -> None:
    with pytest.raises(UsageError, match=re.escape("agent.network.channels = [] (from --set) must hold at least 1")):
        load("football_vtrace", sets=["agent.network.channels=[]"])


def test_choosing_another_algorithm_leaves_out_the_presets_values_of_the_first() -> None:
    resolved = load("pong_r2d2", sets=["agent.algorithm=vtrace", "training.burn_in=0", "actors.evaluation_envs=0"])
    assert resolved.config.agent.algorithm == "vtrace" and "agent.n_step" not in resolved.sources
    assert resolved.config.agent.discount == load("pong_r2d2").config.agent.discount
    (note,) = resolved.notes
    assert (
        note.startswith("agent.dueling_hidden = ")
        and "agent.n_step = 5" in note
        and note.endswith(
            '(from preset pong_r2d2) are ignored: they are for agent.algorithm = "r2d2", and --set selects "vtrace"'
        )
    )
    resolved = load("football_vtrace", flags={"--network": "impala_shallow"})
    assert resolved.config.agent.network.torso == "impala_shallow"
    assert resolved.notes == (
        "agent.network.channels = [16, 32, 32, 32] (from preset football_vtrace) is ignored: it is for "
        'agent.network.torso = "impala_deep", and --network selects "impala_shallow"',
    )


def test_values_of_an_own_algorithm_are_left_out_with_another_one(tmp_path: Path) -> None:
    own = "tests.own_code.my_agent:MyAgent"
    config = tmp_path / "config.toml"
    config.write_text(to_toml(load(flags={"--agent": own})))
    (note,) = load(None, run_folder=tmp_path, flags={"--agent": "vtrace"}).notes
    assert note == (
        f"agent.weight_decay = 0.0001 (from run {tmp_path}) is ignored: it is for agent.algorithm = "
        f'"{own}", and --agent selects "vtrace"'
    )
    config.write_text(config.read_text().replace(own, "module_that_is_gone:Agent"))
    (note,) = load(None, run_folder=tmp_path, flags={"--agent": "vtrace"}).notes
    assert 'is ignored: it is for agent.algorithm = "module_that_is_gone:Agent"' in note
    file = tmp_path / "mine.toml"
    file.write_text(f'[agent]\nalgorithm = "{own}"\nweight_decay = 0.5\nweight_decays = 0.5\n')
    error = refusal("cartpole_vtrace", config_file=file, flags={"--agent": "vtrace"})
    assert error.startswith(f"unknown key agent.weight_decays (from file {file})")


def test_a_key_of_another_choice_is_refused_with_its_owner(tmp_path: Path) -> None:
    assert refusal("pong_vtrace", sets=["agent.n_step=3"]) == (
        'unknown key agent.n_step (from --set): it belongs to agent.algorithm = "r2d2"'
    )
    assert refusal("cartpole_vtrace", environ={"SEED_AGENT__NETWORK__CHANNELS": "[3]"}) == (
        "unknown key agent.network.channels (from environment SEED_AGENT__NETWORK__CHANNELS): it belongs to "
        'agent.network.torso = "impala_deep"'
    )
    file = tmp_path / "mine.toml"
    file.write_text('[environment]\nfamily = "atari"\nid = "pong"\nrewards = "scoring"\n')
    assert 'it belongs to environment.family = "football"' in refusal("cartpole_vtrace", config_file=file)
    file.write_text('[agent]\nnetwork = "mlp"\n')
    assert "must be a table: did you mean agent.network.torso" in refusal("cartpole_vtrace", config_file=file)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ({"--agent": "r2d3"}, 'agent.algorithm = "r2d3" is not a known algorithm: did you mean r2d2?'),
        ({"--agent": "nowhere_at_all:X"}, "there is no module nowhere_at_all; start seed in the folder that holds it"),
        ({"--agent": "tests.configs:Nothing"}, "module tests.configs has no class Nothing"),
        ({"--network": "natur"}, 'agent.network.torso = "natur" is not a known torso: did you mean nature?'),
        (
            {"--family": "atary"},
            'environment.family = "atary" is not a known family of environments: did you mean atari',
        ),
        ({"--family": "pathlib:Path"}, ""),
    ],
)
def test_unknown_choices(flags: dict[str, str], sentence: str) -> None:
    if sentence:
        message = refusal(flags=flags)
        assert sentence in message and message.endswith(f"(from {next(iter(flags))})")
    else:  # a class without a Config has only the common keys; it is refused when it is built
        assert load(flags=flags).config.environment.family == "pathlib:Path"


def test_atari_presets_set_every_option_that_changes_the_task() -> None:
    for name in ("pong_vtrace", "atari_vtrace"):
        resolved = load(name)
        sources = resolved.sources
        left = {key for key in task_keys(resolved) if sources[key] == "default"}
        assert not left, name
        assert sources["agent.reward_clip"] == sources["agent.network.frame_stack"] == f"preset {name}"


# The settings of R2D2 on Atari as published: Kapturowski et al., 2019, and Espeholt et al., 2020 with their repository.
PUBLISHED = {
    "run.steps": 10_000_000_000,  # 40e9 frames of 4 a step
    "environment.family": "atari",
    "environment.frame_skip": 4,
    "environment.repeat_action_probability": 0.0,
    "environment.noop_max": 30,
    "environment.full_action_set": True,
    "environment.max_frames": 108_000,
    "environment.episodic_life": False,
    "environment.fire_reset": False,
    "environment.height": 84,
    "environment.width": 84,
    "agent.algorithm": "r2d2",
    "agent.network.torso": "nature",
    "agent.network.lstm": 512,
    "agent.dueling_hidden": 512,
    "agent.network.frame_stack": 4,
    "agent.network.previous_action_reward": True,
    "agent.network.reward_input_clip": 0.0,
    "agent.reward_clip": 0.0,
    "agent.discount": 0.997,
    "agent.n_step": 5,
    "agent.value_rescaling": True,
    "agent.value_rescaling_epsilon": 1e-3,
    "agent.target_period": 2500,
    "agent.priority_max_weight": 0.9,
    "agent.epsilon_base": 0.4,
    "agent.epsilon_exponent": 7.0,
    "agent.evaluation_epsilon": 1e-3,
    "training.burn_in": 40,
    "training.unroll_length": 80,
    "training.batch_size": 64,
    "training.optimizer": "adam",
    "training.learning_rate": 1e-4,
    "training.learning_rate_schedule": "constant",
    "training.adam_beta1": 0.9,
    "training.adam_beta2": 0.999,
    # Their loss sums over the unroll and ours averages: gradients are 80 times smaller.
    "training.epsilon": 1e-3 / 80,
    "training.clip_norm": 80 / 80,
    "replay.capacity": 100_000,
    "replay.min_size": 5_000,
    "replay.ratio": 0.75,
    "replay.priority_exponent": 0.9,
    "replay.importance_exponent": 0.6,
    "actors.count": 32,
    "actors.envs": 20,
    "actors.evaluation_envs": 30,
}


@pytest.mark.parametrize("key", PUBLISHED)
def test_atari_r2d2_holds_the_published_settings(key: str) -> None:
    rows = {row.key: row for row in describe(load("atari_r2d2"))}
    assert rows[key].value == pytest.approx(PUBLISHED[key])


@pytest.mark.parametrize("name", ["atari_r2d2", "pong_r2d2", "cartpole_memory_r2d2", "recall_r2d2"])
def test_r2d2_presets_are_consistent(name: str) -> None:
    config = load(name).config
    agent, training, replay, actors = config.agent, config.training, config.replay, config.actors
    assert agent.algorithm == "r2d2" and agent.network.lstm > 0 and training.burn_in > 0
    assert agent.n_step <= training.unroll_length and replay.min_size < replay.capacity
    assert 0 < actors.evaluation_envs < actors.count * actors.envs <= config.inference.max_envs
    # The initial fill of the replay takes less than a tenth of the run.
    assert replay.min_size * training.unroll_length < config.run.steps / 10
    assert not agent.network.previous_action_reward or name != "recall_r2d2", "the previous action could carry the cue"


def test_pong_r2d2_sets_every_option_that_changes_the_task() -> None:
    for name in ("pong_r2d2", "atari_r2d2"):
        resolved = load(name)
        sources = resolved.sources
        left = {key for key in task_keys(resolved) if sources[key] == "default"}
        assert not left, name
        assert sources["agent.reward_clip"] == sources["agent.network.frame_stack"] == f"preset {name}"


def test_each_layer_overrides_the_one_below(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("[training]\nbatch_size = 48\n")
    environ = {"SEED_TRAINING__BATCH_SIZE": "64"}
    key = "training.batch_size"
    steps: list[tuple[dict[str, object], int, str]] = [
        ({}, 16, "preset cartpole_vtrace"),
        ({"config_file": file}, 48, f"file {file}"),
        ({"environ": environ}, 64, "environment SEED_TRAINING__BATCH_SIZE"),
        ({"sets": ["training.batch_size=80"]}, 80, "--set"),
    ]
    layers: dict[str, object] = {}
    for added, value, source in steps:
        layers |= added
        resolved = load(**layers)
        assert (resolved.config.training.batch_size, resolved.sources[key]) == (value, source)
    resolved = load(sets=["run.steps=7"], flags={"--steps": 9, "--seed": None})
    assert (resolved.config.run.steps, resolved.sources["run.steps"]) == (9, "--steps")
    assert resolved.sources["run.seed"] == "default"


def test_sources_name_every_key() -> None:
    assert list(load().sources) == list(keys_of(type(load().config)))
    assert all(row.description for row in describe(load()))


def test_flags_set_known_keys() -> None:
    assert set(FLAG_KEYS.values()) <= all_keys()


def test_text_is_parsed_as_toml_if_possible() -> None:
    config = load(
        sets=[
            "agent.network.hidden=[8, 16]",
            "environment.id=ALE/Thing-v5",
            "run.steps=1e6",
            "telemetry.loggers=[]",
            "topology.trust_network=true",
            "agent.lambda = 0.9",
            'environment.kwargs={level = 3, name = "x"}',
        ]
    ).config
    assert config.agent.network.hidden == (8, 16)
    assert config.environment.id == "ALE/Thing-v5"
    assert config.run.steps == 1_000_000
    assert config.telemetry.loggers == () and config.topology.trust_network is True
    assert config.agent.lambda_ == 0.9
    assert config.environment.kwargs == {"level": 3, "name": "x"}


def test_text_is_not_parsed_for_keys_that_hold_text() -> None:
    assert load(sets=["environment.id=2048"]).config.environment.id == "2048"
    assert load(sets=['environment.id="2048"']).config.environment.id == "2048"
    assert load(sets=["environment.id=1979-05-27"]).config.environment.id == "1979-05-27"


def test_value_cannot_inject_toml_lines() -> None:
    assert load(sets=["environment.id=a\nb = 2"]).config.environment.id == "a\nb = 2"


def test_other_environment_variables_are_ignored() -> None:
    assert load(environ={"SEED_TOKEN": "x", "SEED": "1", "OTHER__KEY": "1", "seed_run__steps": "1"}) == load()


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("training.bach_size", "did you mean training.batch_size"),
        ("trainig.batch_size", "training.batch_size or inference.batch_size"),
        ("batch_size", "training.batch_size or inference.batch_size"),
        ("steps", "did you mean run.steps"),
        ("unrol_length", "did you mean training.unroll_length"),
        ("agent.dueling_hiden", 'did you mean agent.dueling_hidden (of agent.algorithm = "r2d2")'),
        ("agent.foo", "seed presets show NAME lists every key"),
        ("zzz.qqq", "seed presets show NAME lists every key"),
    ],
)
def test_unknown_key_suggests_the_nearest(key: str, near: str) -> None:
    message = refusal(sets=[f"{key}=1"])
    assert message.startswith(f"unknown key {key} (from --set)")
    assert near in message


def test_unknown_key_names_its_layer(tmp_path: Path) -> None:
    assert "(from environment SEED_TRAINING__BATCHSIZE)" in refusal(environ={"SEED_TRAINING__BATCHSIZE": "3"})
    file = tmp_path / "mine.toml"
    for text in ("[trainings]\n", "training = 5\n", "[training]\nnope = 1\n"):
        file.write_text(text)
        assert re.match(rf"unknown key \S+ \(from file {re.escape(str(file))}\)", refusal(config_file=file))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("training.batch_size=0", "training.batch_size = 0 (from --set) must be at least 1"),
        ("training.batch_size=2.5", "training.batch_size = 2.5 (from --set) must be a whole number"),
        ("training.batch_size=true", "training.batch_size = true (from --set) must be a whole number"),
        ("training.batch_size=many", 'training.batch_size = "many" (from --set) must be a whole number'),
        ("training.batch_size=", 'training.batch_size = "" (from --set) must be a whole number'),
        ("training.learning_rate=nan", "training.learning_rate = nan (from --set) must be"),
        ("training.learning_rate=inf", "training.learning_rate = inf (from --set) must be a finite number"),
        ("training.learning_rate=0", "training.learning_rate = 0 (from --set) must be more than 0"),
        ("training.adam_beta1=1.0", "training.adam_beta1 = 1.0 (from --set) must be less than 1"),
        ("agent.discount=1.5", "agent.discount = 1.5 (from --set) must be at most 1"),
        ("agent.lambda=-1", "agent.lambda = -1 (from --set) must be at least 0"),
        (
            "agent.network.activation=elu",
            "agent.network.activation = \"elu\" (from --set) must be one of 'tanh' or 'relu'",
        ),
        ("agent.network.hidden=64", "agent.network.hidden = 64 (from --set) must be a list, such as [64, 64]"),
        (
            "environment.observation_keys=image",
            'environment.observation_keys = "image" (from --set) must be a list, such as ["image"]',
        ),
        (
            'environment.observation_keys=["image", "-mission"]',
            "environment.observation_keys = ['image', '-mission'] must not mix included and excluded keys: "
            'prefix all of them with "-", or none (environment.observation_keys from --set)',
        ),
        ("agent.network.hidden=[64, 0]", "agent.network.hidden[1] = 0 (from --set) must be at least 1"),
        ("topology.trust_network=1", "topology.trust_network = 1 (from --set) must be true or false"),
        ("telemetry.loggers=wandb", 'telemetry.loggers = "wandb" (from --set) must be a list, such as ["wandb"]'),
        (
            'telemetry.loggers=["neptune"]',
            "telemetry.loggers[0] = \"neptune\" (from --set) must be one of 'tensorboard', 'wandb' or 'mlflow'",
        ),
        (
            'telemetry.loggers=["wandb", "wandb"]',
            "telemetry.loggers = ['wandb', 'wandb'] must name each logger once (telemetry.loggers from --set)",
        ),
        ("environment.kwargs=3", "environment.kwargs = 3 (from --set) must be a table, such as { name = 1 }"),
        ("environment.id=", 'environment.id = "" (from --set) must not be empty'),
        *(
            (
                f"topology.{key}={text}",
                f'topology.{key} = {shown} (from --set) must be "auto" or a whole number of at least 1',
            )
            for key in ("training_devices", "inference_devices")
            for text, shown in (("0", "0"), ("2.5", "2.5"), ("all", '"all"'), ("true", "true"), ("[1]", "[1]"))
        ),
    ],
)
def test_invalid_value_is_reported_in_one_sentence(text: str, sentence: str) -> None:
    assert refusal(sets=[text]).startswith(sentence)


@pytest.mark.parametrize(
    ("preset", "sets", "parts"),
    [
        (
            "cartpole_vtrace",
            ["actors.streams=4", "actors.envs=2"],
            ["actors.streams = 4 must be at most actors.envs = 2"],
        ),
        ("cartpole_vtrace", ["actors.count=1000"], ["must be at most inference.max_envs = 4096"]),
        ("cartpole_vtrace", ["inference.batch_size=5000"], ["must be at most inference.max_envs = 4096"]),
        ("cartpole_vtrace", ["inference.pad_to=[8, 8]"], ["inference.pad_to = [8, 8] must be in increasing order"]),
        ("cartpole_vtrace", ["training.learning_rate_end=1"], ["must be at most training.learning_rate = 0.003"]),
        ("cartpole_vtrace", ["net.heartbeat_seconds=20"], ["must be below net.timeout_seconds = 20.0"]),
        ("cartpole_vtrace", ["net.grpc_port=8687"], ["must differ from net.zmq_port = 8687"]),
        (
            "cartpole_vtrace",
            ["net.insecure=true", "net.token_file=t"],
            ["net.insecure = true disables the token and encryption", "net.token_file"],
        ),
        ("cartpole_vtrace", ["net.tls_cert=c"], ['net.tls_cert = "c" needs net.tls_key']),
        ("cartpole_vtrace", ["net.tls_key=c"], ['net.tls_key = "c" needs net.tls_cert']),
        ("cartpole_vtrace", ["net.tls_ca=c"], ['net.tls_ca = "c" needs net.tls_cert and net.tls_key']),
        ("pong_vtrace", ["environment.id=SpaceInvaders"], ['write "space_invaders"', "environment.id from --set"]),
        ("pong_vtrace", ["environment.id=ALE/Breakout-v5"], ['write "breakout"']),
        ("pong_vtrace", ["environment.id=QbertNoFrameskip-v4"], ['write "qbert"']),
    ],
)
def test_conflicting_values_are_refused(preset: str, sets: list[str], parts: list[str]) -> None:
    message = refusal(preset, sets=sets)
    assert all(part in message for part in parts), message
    assert "from --set" in message


@pytest.mark.parametrize(
    ("preset", "sets", "sentence"),
    [
        (
            "recall_r2d2",
            ["agent.n_step=21"],
            "agent.n_step = 21 must be at most training.unroll_length = 20: a target cannot reach beyond its unroll",
        ),
        (
            "cartpole_vtrace",
            ["training.burn_in=3"],
            "training.burn_in = 3 must be 0 with agent.algorithm vtrace: only replayed unrolls have stale states",
        ),
        (
            "recall_r2d2",
            ["training.epochs=2"],
            "training.epochs = 2 must be 1 with agent.algorithm r2d2: replay.ratio sets how often it trains on an",
        ),
        (
            "recall_r2d2",
            ["training.synchronous=true"],
            "training.synchronous = true must be false with agent.algorithm r2d2: it trains from a replay, and",
        ),
        (
            "recall_r2d2",
            ["training.minibatches=2"],
            "training.minibatches = 2 must be 1 with agent.algorithm r2d2: replay.ratio sets how often it trains",
        ),
        (
            "cartpole_vtrace",
            ["training.batch_size=30", "training.minibatches=4"],
            "training.batch_size = 30 must be a multiple of training.minibatches = 4: every minibatch has the same",
        ),
        (
            "recall_r2d2",
            ["agent.network.lstm=0"],
            "training.burn_in = 10 must be 0 with agent.network.lstm = 0 and agent.network.frame_stack = 1",
        ),
        (
            "recall_r2d2",
            ["replay.capacity=99"],
            "replay.capacity = 99 must be at least replay.min_size = 100, or training never starts",
        ),
        (
            "recall_r2d2",
            ["run.steps=2000"],
            "run.steps = 2000 must be above 2000, replay.min_size = 100 unrolls of training.unroll_length = 20 steps: "
            "the run would end before training starts",
        ),
        (
            "recall_r2d2",
            ["replay.window=31"],
            "replay.window = 31 must be 0 (automatic) or at least 32, half of training.batch_size = 32 plus "
            "replay.ratio = 32: with a smaller window, training and insertion would block each other",
        ),
        (
            "recall_r2d2",
            ["actors.evaluation_envs=20"],
            "actors.evaluation_envs = 20 must be at most 19 with actors.count = 1 and actors.envs = 20: each actor "
            "needs an environment to train with",
        ),
        (
            "recall_r2d2",
            ["actors.count=3", "actors.envs=2", "actors.streams=1"],
            "actors.evaluation_envs = 4 must be at most 3 with actors.count = 3 and actors.envs = 2",
        ),
        (
            "cartpole_vtrace",
            ["actors.evaluation_envs=1"],
            "actors.evaluation_envs = 1 must be 0 with agent.algorithm vtrace, which explores with its policy alone: "
            "use seed eval --watch",
        ),
    ],
)
def test_conflicts_of_lengths_replay_and_evaluation(preset: str, sets: list[str], sentence: str) -> None:
    message = refusal(preset, sets=sets)
    assert sentence in message and "from " in message


def test_lengths_and_replay_sizes_at_their_limits() -> None:
    assert load("recall_r2d2", sets=["agent.n_step=20", "replay.capacity=100", "replay.window=32"])
    assert load("recall_r2d2", sets=["agent.network.lstm=0", "training.burn_in=0"])
    assert load("recall_r2d2", sets=["agent.network.lstm=0", "agent.network.frame_stack=2"])
    assert load("recall_r2d2", sets=["actors.evaluation_envs=19"])


def test_values_that_do_not_conflict() -> None:
    assert load(sets=["training.learning_rate_schedule=constant", "training.learning_rate_end=1"])
    assert load(sets=["net.grpc_port=0", "net.zmq_port=0"])
    assert load(sets=["net.host=localhost"])
    assert load(sets=["net.host=::1"])


def test_unknown_preset_suggests_the_nearest() -> None:
    assert refusal("cartpole").startswith("Unknown preset 'cartpole'. Did you mean cartpole_vtrace?")
    assert "cartpole_vtrace" in refusal("zzzzz")
    assert "Unknown preset" in refusal("../presets/cartpole_vtrace")


def test_set_needs_an_equals_sign() -> None:
    assert "must be section.key=value" in refusal(sets=["training.batch_size"])
    assert "must be section.key=value" in refusal(sets=["=3"])


def test_run_preset_cannot_select_a_preset(tmp_path: Path) -> None:
    assert "choose one with --preset pong_vtrace" in refusal(sets=["run.preset=pong_vtrace"])
    assert "--preset pong_vtrace" in refusal(environ={"SEED_RUN__PRESET": "pong_vtrace"})
    file = tmp_path / "saved.toml"
    file.write_text(to_toml(load("pong_vtrace")))
    assert load("cartpole_vtrace", config_file=file).config.run.preset == "cartpole_vtrace"


@pytest.mark.parametrize("content", [b"[training\n", b"a = ", b"\xff\xfe\x00"])
def test_unreadable_file_is_reported_in_one_sentence(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "broken.toml"
    file.write_bytes(content)
    assert str(file) in refusal(config_file=file)
    assert "cannot be read" in refusal(config_file=tmp_path / "absent.toml")
    assert "cannot be read" in refusal(config_file=tmp_path)


@pytest.mark.parametrize("name", preset_names())
def test_toml_round_trip(name: str, tmp_path: Path) -> None:
    nested = 'environment.kwargs={a = [1, 2.5], "b c" = {d = "x\\ny"}}'
    sets = [nested] if "environment.kwargs" in load(name).sources else []
    resolved = load(name, sets=sets, flags={"--steps": 12_345_678})
    text = to_toml(resolved)
    file = tmp_path / "config.toml"
    file.write_text(text, encoding="utf-8")
    assert from_toml_file(file) == resolved.config
    assert "steps = 12345678  # --steps" in text.splitlines()
    assert "seed = 1  # default" in text.splitlines()
    assert f'preset = "{name}"  # preset {name}' in text.splitlines()


@given(st.text(), st.text())
def test_toml_round_trip_of_any_text(value: str, source: str) -> None:
    config = make_config({"environment": {"kwargs": {value: value}}})
    sources = dict.fromkeys(keys_of(type(config)), f"file {source}")
    read = tomllib.loads(to_toml(Resolved(config, sources)))
    assert read["environment"]["kwargs"] == {value: value}
    assert make_config(read) == config


def test_resumed_run_is_the_lowest_layer(tmp_path: Path) -> None:
    first = load("pong_vtrace", sets=["training.batch_size=8"])
    (tmp_path / "config.toml").write_text(to_toml(first))
    resumed = load(None, run_folder=tmp_path, flags={"--steps": 99})
    assert resumed.config.training.batch_size == 8
    assert resumed.config.run.preset == "pong_vtrace"
    assert resumed.sources["training.batch_size"] == f"run {tmp_path}"
    assert (resumed.config.run.steps, resumed.sources["run.steps"]) == (99, "--steps")
    assert "holds no run to resume" in refusal(None, run_folder=tmp_path / "absent")


def test_values_without_effect_are_found() -> None:
    found = without_effect(load("pong_vtrace", sets=["replay.save=true", "agent.lambda=0.9"]))
    assert [(value.key, value.source) for value in found] == [("replay.save", "--set")]
    assert without_effect(load("atari_r2d2")) == without_effect(load("atari_vtrace")) == []
