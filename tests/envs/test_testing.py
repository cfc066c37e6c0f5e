from __future__ import annotations

import numpy as np

from seedcli.envs.testing import MAX_LENGTH, counter_reward
from tests.envs.helpers import COUNTER, RECALL, Played, gymnasium_config, play


def test_counter_observations_identify_each_record() -> None:
    steps, envs = 300, 4
    with Played(gymnasium_config(COUNTER), envs) as played:
        random = np.random.default_rng(1)
        record = played.reset(3)
        numbers = record.observation[:, 0]
        assert len(set(numbers)) == envs
        episode, step, final = np.zeros(envs), np.zeros(envs), np.zeros(envs, bool)
        lengths = []
        for _ in range(steps):
            actions = random.integers(4, size=envs)
            record = played.step(actions)
            episode, step = episode + final, np.where(final, 0, step + 1)
            expected = np.stack([numbers, episode, step, np.where(final, -1, actions)], axis=1)
            np.testing.assert_array_equal(record.observation, expected)
            np.testing.assert_array_equal(record.reward, counter_reward(episode, step))
            ended = (record.terminated | record.truncated) != 0
            np.testing.assert_array_equal(record.terminated, ended & (episode % 2 == 0))
            np.testing.assert_array_equal(record.truncated, ended & (episode % 2 == 1))
            lengths += step[ended].tolist()
            final = ended
    assert min(lengths) >= 1 and max(lengths) <= MAX_LENGTH and len(set(lengths)) > 10


def test_counter_rewards_identify_records() -> None:
    """No two records within sixteen consecutive episodes have the same reward."""
    rewards = counter_reward(np.arange(16)[:, None], np.arange(1, MAX_LENGTH + 1))
    assert len(np.unique(rewards)) == rewards.size
    assert not counter_reward(np.arange(20), 0).any()


def test_counter_lengths_are_drawn_from_the_seed() -> None:
    one, same, other = (play(gymnasium_config(COUNTER), 2, seed, 100) for seed in (1, 1, 9))
    np.testing.assert_array_equal(one.observation[..., 1:], same.observation[..., 1:])
    assert (one.observation[..., 1:] != other.observation[..., 1:]).any()


def test_counter_never_repeats_a_record_after_reseeding() -> None:
    with Played(gymnasium_config(COUNTER), 1) as played:
        one, again = played.run(1, 50), played.run(1, 50)
    records = np.concatenate([one.observation, again.observation])[:, 0, :3]
    assert len(np.unique(records, axis=0)) == len(records)


def test_recall_rewards_only_memory() -> None:
    delay, envs, episodes = 4, 64, 10
    with Played(gymnasium_config(RECALL, kwargs={"delay": delay}), envs) as played:
        record = played.reset(0)
        returns: dict[str, list[float]] = {"remembers": [], "always 0": []}
        for name in returns:
            for _ in range(episodes):
                cue = record.observation[:, :2].argmax(axis=1)
                assert (record.observation[:, :2].sum(axis=1) == 1).all()
                for step in range(1, delay + 1):
                    record = played.step(0)
                    assert not record.observation[:, :2].any() and not record.reward.any()
                    assert (record.observation[:, 2] == (step == delay)).all()
                record = played.step(cue if name == "remembers" else 0)
                assert record.terminated.all() and not record.truncated.any() and not record.observation[:, :2].any()
                returns[name] += record.reward.tolist()
                record = played.step(0)
    assert np.mean(returns["remembers"]) == 1
    assert 0.4 < np.mean(returns["always 0"]) < 0.6
