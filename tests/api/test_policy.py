"""`seedcli.load_policy` on checkpoints of real runs: actions, memory and refused inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import seedcli
from seedcli.errors import CheckpointError, UsageError
from tests.api.helpers import MEMORY, TINY, play, untrained

pytestmark = pytest.mark.timeout(300)

TESTING = "seedcli.envs.testing"
ECHO = {"environment.kwargs": {"answer": "box"}}
# Name → preset, environment, values: a vector, memory of every kind, and a Dict observation with Box actions.
RUNS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "cartpole": ("cartpole_vtrace", "CartPole-v1", {}),
    "recall": ("recall_r2d2", f"{TESTING}:Recall-v0", MEMORY | {"environment.kwargs": {"delay": 3}}),
    "echo": ("gymnasium_vtrace", f"{TESTING}:Echo-v0", ECHO),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, seedcli.Run]:
    folder = tmp_path_factory.mktemp("runs")
    return {
        name: seedcli.train(preset, env=env, steps=2000, seed=5, logdir=folder / name, set=TINY | sets, quiet=True)
        for name, (preset, env, sets) in RUNS.items()
    }


def make(name: str) -> gymnasium.Env[Any, Any]:
    _, env, sets = RUNS[name]
    return gymnasium.make(env, **sets.get("environment.kwargs", {}))


@pytest.mark.parametrize("name, greedy", [("cartpole", False), ("recall", True), ("echo", None), ("echo", False)])
def test_a_policy_plays_a_plain_environment_as_seed_eval_does(
    runs: dict[str, seedcli.Run], name: str, greedy: bool | None
) -> None:
    run = runs[name]
    evaluation = run.evaluate(episodes=6, greedy=greedy, seed=11, envs=1, quiet=True)
    assert evaluation.actions == ("sampled" if greedy is False else "greedy")
    env = make(name)
    returns = play(run.policy(greedy=greedy, seed=11), env, 6, seed=11)
    np.testing.assert_allclose(returns, evaluation.returns, rtol=1e-6)
    assert evaluation.episodes == 6 and evaluation.mean == pytest.approx(returns.mean())
    if name != "recall":
        other = play(run.policy(greedy=False, seed=12), env, 6, seed=11)
        assert not np.allclose(other, returns), "other actions give other returns"


def test_actions_fit_the_plain_environment(runs: dict[str, seedcli.Run]) -> None:
    for name, kind in {"cartpole": int, "recall": int, "echo": np.ndarray}.items():
        env, policy = make(name), runs[name].policy(greedy=False)
        observation, _ = env.reset(seed=1)
        for _ in range(5):
            action = policy(observation)
            assert type(action) is kind and env.action_space.contains(action)
            observation, *_ = env.step(action)


def test_a_batch_is_answered_row_by_row(runs: dict[str, seedcli.Run]) -> None:
    rng = np.random.default_rng(2)
    batch, singles = runs["recall"].policy(), [runs["recall"].policy() for _ in range(3)]
    for step in range(6):
        observations = rng.uniform(size=(3, 3)).astype(np.float32)
        rewards = rng.uniform(size=3)
        if step == 3:
            batch.reset(rows=[1])
            singles[1].reset()
        first = np.array([False, False, step == 5])
        found = batch.step(observations, rewards, first)
        assert found.action.shape == (3,) and found.q_values.shape == (3, 2)
        for row, policy in enumerate(singles):
            alone = policy.step(observations[row], rewards[row], bool(first[row]))
            np.testing.assert_allclose(found.q_values[row], alone.q_values, atol=1e-5)
            assert alone.action == alone.q_values.argmax() == found.action[row]


def test_memory_is_kept_until_it_is_reset(runs: dict[str, seedcli.Run]) -> None:
    policy = runs["recall"].policy()
    cues = np.eye(3, dtype=np.float32)
    asked = np.array([[0, 0, 1.0]] * 3, np.float32)
    fresh = policy.step(asked).q_values
    np.testing.assert_allclose(fresh[0], fresh[1], atol=1e-6)
    policy.reset()
    policy(cues)
    remembered = policy.step(asked).q_values
    assert not np.allclose(remembered[0], remembered[1], atol=1e-5)
    for rows in ([True, False, True], np.array([0, 2]), [-0, 2, 2]):
        policy.reset()
        policy(cues)
        policy.reset(rows=rows)
        found = policy.step(asked).q_values
        np.testing.assert_allclose(found, np.stack([fresh[0], remembered[1], fresh[2]]), atol=1e-5)
    policy.reset()
    np.testing.assert_allclose(policy.step(asked[0]).q_values, fresh[0], atol=1e-5)  # one environment now
    policy.reset(rows=[])
    assert not np.allclose(policy.step(asked[0]).q_values, fresh[0], atol=1e-5)


def test_the_previous_reward_counts_except_where_an_episode_begins(runs: dict[str, seedcli.Run]) -> None:
    policy, observation = runs["recall"].policy(), np.ones(3, np.float32)

    def second(reward: float, first: bool) -> Any:
        policy.reset()
        policy(observation, 7.0)
        return policy.step(observation, reward, first).q_values

    assert not np.allclose(second(0.0, False), second(1.0, False), atol=1e-5)
    np.testing.assert_allclose(second(0.0, True), second(1.0, True), atol=1e-6)


def test_sampled_actions_are_reproduced_by_the_seed(runs: dict[str, seedcli.Run]) -> None:
    observations = np.zeros((50, 4), np.float32)
    played = []
    for seed in (3, 3, 4):
        policy = runs["cartpole"].policy(greedy=False, seed=seed)
        played.append([policy(observations), policy(observations)])
        policy.reset()
        more = np.zeros((60, 4), np.float32)
        played[-1].append(policy(more)[:50])
    np.testing.assert_array_equal(played[0], played[1])
    assert (np.array(played[0]) != np.array(played[2])).any(axis=1).all()
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert (played[0][one] != played[0][other]).any(), "each call draws other numbers"
    greedy = runs["cartpole"].policy().step(observations)
    assert (greedy.action == greedy.action[0]).all()


def test_a_step_says_what_else_the_algorithm_knows(runs: dict[str, seedcli.Run]) -> None:
    found = runs["cartpole"].policy(greedy=False).step(np.zeros((20, 4), np.float32))
    np.testing.assert_allclose(found.probabilities.sum(axis=-1), 1.0, rtol=1e-5)
    np.testing.assert_array_equal(found.greedy_action, found.logits.argmax(axis=-1))
    assert found.value.shape == (20,) and "value" in dir(found)
    with pytest.raises(
        AttributeError, match="returns no q_values: it returns action, greedy_action, value, logits, prob"
    ):
        found.q_values  # noqa: B018 (an attribute that is not there)

    env = make("echo")
    observation, _ = env.reset(seed=1)
    found = runs["echo"].policy().step(observation)
    assert found.mean.shape == found.std.shape == (2,) and found.value.shape == ()
    # The mean is in units of the bounds, -2 and 6.
    np.testing.assert_allclose(found.action, np.clip(found.mean * 4.0 + 2.0, -2.0, 6.0), rtol=1e-5)
    np.testing.assert_array_equal(found.action, found.greedy_action)


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        ((np.zeros(3),), "the observation has shape (3,): it must be of shape (4,) and type float32, or (N, 4) for a"),
        ((np.zeros(4), [1.0]), "reward has shape (1,) and type float64: it must be a number"),
        ((np.zeros(4), "much"), "reward has shape () and type <U4: it must be a number"),
        ((np.zeros((2, 4)), [1.0] * 3), "it must be a number, or an array (2,) of them"),
        ((np.zeros((2, 4)), 0.0, [1, 0]), "first has shape (2,) and type int64: it must be bool, or an array (2,)"),
    ],
)
def test_wrong_arguments_are_refused_in_one_sentence(
    runs: dict[str, seedcli.Run], arguments: tuple[Any, ...], sentence: str
) -> None:
    policy = runs["cartpole"].policy()
    with pytest.raises(UsageError) as error:
        policy(*arguments)
    assert sentence in str(error.value)
    policy(np.zeros((5, 4)))  # refused calls have changed nothing


def test_another_number_of_environments_needs_a_reset(runs: dict[str, seedcli.Run]) -> None:
    policy = runs["cartpole"].policy()
    policy(np.zeros((3, 4)))
    for observation, what in ((np.zeros((2, 4)), "a batch of 2"), (np.zeros(4), "one environment")):
        with pytest.raises(UsageError) as error:
            policy(observation)
        assert f"is for {what}, and those before were for a batch of 3: call policy.reset() first" in str(error.value)
    assert policy(np.zeros((3, 4))).shape == (3,)
    for rows, sentence in (
        ([True], "rows is a mask of shape (1,): it must be (3,)"),
        ([3], "rows = [3] must be indices from 0 to 2"),
        ([0.5], "rows is float64: it must be a mask of bool, or indices"),
    ):
        with pytest.raises(UsageError) as error:
            policy.reset(rows=rows)
        assert str(error.value) == sentence
    policy.reset()
    assert policy(np.zeros((2, 4))).shape == (2,)


def test_a_policy_is_found_by_run_checkpoints_and_checkpoint(runs: dict[str, seedcli.Run]) -> None:
    run = runs["cartpole"]
    newest = run.checkpoints[-1]
    for path in (run.path, str(run.path / "checkpoints"), newest):
        policy = seedcli.load_policy(path)
        assert policy.checkpoint == newest and policy.env_steps == int(newest.name) >= 2000
    assert policy.greedy and policy.spec.action.categories == (2,)
    assert policy.config == run.config and policy.config["training"]["batch_size"] == 8
    assert repr(policy) == f"<seedcli.Policy for gymnasium/CartPole-v1, greedy, {policy.env_steps:,} environment steps>"
    with pytest.raises(CheckpointError, match="it does not exist; give a run folder or one of its checkpoints"):
        seedcli.load_policy(run.path / "nothing")
    with pytest.raises(UsageError, match="seed = -1 must be between 0 and 2147483647"):
        run.policy(seed=-1)


def test_several_categories_and_categories_that_do_not_start_at_0(tmp_path: Path) -> None:
    run = untrained(tmp_path, "gymnasium_vtrace", f"{TESTING}:Echo-v0", kwargs='{ answer = "multi_discrete" }')
    policy = seedcli.load_policy(run, greedy=False)
    env = gymnasium.make_vec(f"{TESTING}:Echo-v0", 3, vectorization_mode="sync", answer="multi_discrete")
    observations, _ = env.reset(seed=1)
    for _ in range(3):
        found = policy.step(observations)
        assert env.action_space.contains(found.action) and found.probabilities.shape == (3, 6)
        np.testing.assert_allclose(found.probabilities.reshape(3, 2, 3).sum(axis=-1), 1.0, rtol=1e-5)
        observations, *_ = env.step(found.action)


def test_an_environment_that_has_changed_is_refused(tmp_path: Path) -> None:
    run = untrained(tmp_path, "gymnasium_vtrace", "CartPole-v1")
    config = next((run / "checkpoints").glob("*/config.toml"))
    changed = config.read_text().replace('"CartPole-v1"', '"Acrobot-v1"')
    assert changed != config.read_text()
    config.write_text(changed)
    with pytest.raises(CheckpointError, match="damaged"):
        seedcli.load_policy(run)
