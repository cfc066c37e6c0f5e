"""Each broken rule is found by its own check, and by no other."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
import pytest

from seedcli.envs.base import VectorEnv
from seedcli.envs.conformance import Finding, check_environment
from seedcli.envs.playing import MakeEnv
from seedcli.envs.registry import create_env
from seedcli.specs import Rows
from tests.envs.helpers import gymnasium_config

ALL = ["play", "spaces", "frames", "rewards", "seeding", "isolation", "autoreset", "truncation", "actions", "speed"]


def making(name: str) -> MakeEnv:
    return lambda envs: create_env(gymnasium_config(f"tests.envs.samples:{name}-v0"), envs)


def examined(make: MakeEnv) -> list[Finding]:
    return check_environment(make, seconds=0.2)


@pytest.mark.parametrize("name", ["Walk", "Mixed", "Pushed"])
def test_correct_environment_passes(name: str) -> None:
    findings = examined(making(name))
    assert [finding.name for finding in findings] == ALL
    assert [(f.name, f.detail) for f in findings if f.status != "ok"] == []


@pytest.mark.parametrize(
    ("name", "check", "status", "words"),
    [
        ("Raises", "play", "failure", r"environment 0 of .*Raises-v0 failed in step: RuntimeError: the simulator fell"),
        ("NotANumber", "play", "failure", r"environment 0 of .* returned the observation nan, which is not a finite"),
        ("OutOfBounds", "spaces", "warning", r"^observation\[1\] went beyond the bounds"),
        ("DeadSensor", "frames", "warning", r"^observation\[1\] never changed in"),
        ("NoReward", "rewards", "warning", r"each of [\d,]+ rewards was 0"),
        ("RewardNotANumber", "rewards", "failure", "rewards are not finite, such as nan"),
        ("SeedIgnored", "seeding", "warning", r"seeds 1 and 2 lead to the same"),
        ("Shared", "isolation", "failure", r"environment 2 of 3 behaves differently than alone.*share state"),
        (
            "ResetDoesNothing",
            "autoreset",
            "failure",
            "begins with the final observation of the last one: reset does not",
        ),
        ("LimitTerminates", "truncation", "warning", r"terminated after exactly 20 steps.* must truncate"),
        ("EndTruncates", "truncation", "warning", "truncated after different numbers of steps.* must terminate"),
        ("RefusesAnAction", "actions", "failure", r"^action \[200, 0\] fails: environment 0 of .* IndexError"),
        ("ActionsIgnored", "actions", "warning", "actions made no difference"),
    ],
)
def test_a_broken_rule_is_found(name: str, check: str, status: str, words: str) -> None:
    findings = examined(making(name))
    assert [(f.name, f.status) for f in findings if f.status not in ("ok", "skipped")] == [(check, status)]
    (finding,) = (f for f in findings if f.name == check)
    assert re.search(words, finding.detail), finding.detail
    assert "\n" not in finding.detail


@pytest.mark.parametrize(
    ("name", "warnings"),
    [
        ("Bandit", ["frames", "autoreset"]),
        ("ContextBandit", ["frames", "autoreset"]),
        ("Cards", []),
        ("RoundTrip", ["autoreset"]),
    ],
)
def test_ambiguous_behaviour_is_only_a_warning(name: str, warnings: list[str]) -> None:
    findings = examined(making(name))
    assert [(f.name, f.status) for f in findings if f.status != "ok"] == [(name, "warning") for name in warnings]


@pytest.mark.parametrize(("name", "status"), [("LimitTerminates", "ok"), ("Endless", "skipped")])
def test_a_clock_that_terminates_by_declaration_is_no_warning(name: str, status: str) -> None:
    findings = {f.name: f for f in check_environment(making(name), seconds=0.2, clock_terminates=True)}
    assert findings["truncation"].status == status


@pytest.mark.parametrize(("name", "words"), [("Unseeded", "after two resets"), ("Remembers", "after two resets")])
def test_unrepeatable_seeds_are_found(name: str, words: str) -> None:
    findings = {f.name: f for f in examined(making(name))}
    assert findings["seeding"].status == "failure" and words in findings["seeding"].detail
    assert findings["isolation"].status == "skipped"
    assert {f.name for f in findings.values() if f.status == "failure"} == {"seeding"}


def test_an_observation_that_never_changes() -> None:
    findings = {f.name: f for f in examined(making("Frozen"))}
    assert findings["frames"].status == "warning" and "no observation changes" in findings["frames"].detail


def test_episodes_that_never_end() -> None:
    findings = {f.name: f for f in examined(making("Endless"))}
    assert findings["truncation"].status == "warning" and "max_episode_steps" in findings["truncation"].detail
    assert findings["autoreset"].status == "skipped"


class Wrong:
    """Wraps a correct vector environment and adds one fault."""

    def __init__(self, env: VectorEnv, fault: str) -> None:
        self._env, self._fault = env, fault
        self.spec, self.num_envs = env.spec, env.num_envs
        self._final = np.zeros(env.num_envs, bool)
        self._kept: npt.NDArray[np.int32] = np.zeros(env.num_envs, np.int32)

    def reset(self, seed: int, out: Rows) -> None:
        before = out.observation[:, 1].copy()
        self._final[:], self._kept = False, np.zeros_like(self._kept)
        self._env.reset(seed if self._fault != "seeds" else seed * self.num_envs, out)
        self._after(out, before)

    def step(self, actions: npt.NDArray[np.int32], out: Rows) -> None:
        before = out.observation[:, 1].copy()
        if self._fault == "any action":
            actions = np.clip(actions, 0, 2)
        if self._fault == "error" and actions.max() > 2:
            raise IndexError("no such action")
        if self._fault == "final action" and self._final.any():
            self._kept = np.where(self._final, actions, self._kept)
        self._env.step(actions, out)
        if self._fault == "first reward":
            out.reward[self._final] = 1
        if self._fault == "final action":
            out.observation[..., 0] += self._kept
        self._final = (out.terminated | out.truncated) != 0
        self._after(out, before)

    def _after(self, out: Rows, before: npt.NDArray[np.float32]) -> None:
        if self._fault == "unwritten":
            out.observation[:, 1] = before
        elif self._fault == "flags":
            out.truncated[...] *= 2
        elif self._fault == "infinite":
            out.observation[:, 0] = np.inf

    def render(self) -> npt.NDArray[np.uint8]:
        raise NotImplementedError

    def close(self) -> None:
        self._env.close()


@pytest.mark.parametrize(
    ("fault", "check", "words"),
    [
        ("unwritten", "spaces", "parts of observation were never written"),
        ("flags", "spaces", "truncated holds 2"),
        ("infinite", "spaces", "observation holds inf"),
        ("first reward", "autoreset", "first record of an episode has reward 1"),
        ("final action", "autoreset", "the action on a final record changes what follows"),
        ("seeds", "isolation", "seeds are not consecutive"),
        ("any action", "actions", "is accepted; it must be refused"),
        ("error", "actions", "IndexError: no such action, which the vector environment should have raised as"),
    ],
)
def test_a_faulty_vector_environment_is_found(fault: str, check: str, words: str) -> None:
    findings = {f.name: f for f in examined(lambda envs: Wrong(making("Walk")(envs), fault))}
    assert findings[check].status == "failure" and words in findings[check].detail, findings[check]
    assert {f.name for f in findings.values() if f.status == "failure"} == {check}


def test_a_missing_simulator_is_a_failure() -> None:
    def missing(envs: int) -> VectorEnv:
        raise ImportError("no such simulator")

    (finding,) = examined(missing)
    assert (finding.name, finding.status) == ("play", "failure") and "no such simulator" in finding.detail
