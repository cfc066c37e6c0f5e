"""Conformance checks of vector environments: of every family in the tests, of users' environments in
`seed doctor --env`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from seedcli.envs.playing import FILL, MakeEnv, Run, carried_ends, driving, episodes_of, every_action, extremes
from seedcli.envs.speed import measure_speed
from seedcli.errors import EnvironmentFailed, SeedError, first_line
from seedcli.specs import ActionSpec, EnvSpec

Status = Literal["ok", "warning", "failure", "skipped"]

_ENVS = 3  # environments of a vector that is played
_STEPS = 2_000  # longest play
_REPLAY = 200  # longest play that is repeated
_SHORT = 10  # steps; if all episodes are shorter, equal lengths do not suggest a time limit
_DIFFERENT_ENDS = 3  # new episodes that begin with so many different final observations are no coincidence
_LISTED = 4  # names in a sentence; the rest is counted


@dataclass(frozen=True)
class Finding:
    """What one check found.

    Attributes:
        name: the check.
        status: "ok"; "warning": it trains, but check it; "failure": a rule is broken; "skipped": cannot be checked.
        detail: one sentence.
        value: figures for JSON output, or None.
    """

    name: str
    status: Status
    detail: str
    value: Any = None


def check_environment(
    make: MakeEnv,
    *,
    seconds: float = 1.0,
    least: int = 10,
    clock_terminates: bool = False,
    begin: Callable[[str], None] = lambda name: None,
    found: Callable[[Finding], None] = lambda finding: None,
) -> list[Finding]:
    """Play vector environments with random actions and check their behaviour.

    A hung environment blocks this function: run it in a separate process if that is a problem.

    Args:
        make: builds a vector of the given number of environments, as `create_env` does.
        seconds: approximate play time of each check; there are about eight.
        least: minimum number of steps of the first play, on which most checks are based, however long they take.
        clock_terminates: time limits of these environments terminate, see `Family`.
        begin: called with the name of each check before it begins.
        found: called with each finding.

    Returns:
        A finding for each check; only "play" if that fails.
    """
    findings: list[Finding] = []

    def judge(name: str, check: Callable[[], tuple[Status, str] | tuple[Status, str, Any]]) -> Finding:
        begin(name)
        try:
            finding = Finding(name, *check())
        except Exception as error:
            finding = Finding(name, "failure", _sentence(error))
        findings.append(finding)
        found(finding)
        return finding

    played: list[tuple[EnvSpec, dict[str, tuple[Any, Any]], str, Run]] = []

    def play() -> tuple[Status, str]:
        with driving(make, _ENVS) as driver:
            run = driver.play(1, _STEPS, seconds, least=least)
            env = driver.env
            played.append((env.spec, getattr(env, "observation_bounds", {}), getattr(env, "notice", ""), run))
        return "ok", f"{len(run.reward) - 1:,} steps of {_ENVS} environments, random actions"

    judge("play", play)
    if not played:
        return findings
    spec, bounds, notice, run = played[0]
    judge("spaces", lambda: _check_spaces(spec, bounds, notice, run))
    judge("frames", lambda: _check_frames(spec, run))
    judge("rewards", lambda: _check_rewards(run))
    seeding = judge("seeding", lambda: _check_seeding(make, seconds))
    repeatable = seeding.status != "failure"
    judge("isolation", lambda: _check_isolation(make, seconds) if repeatable else _UNREPEATABLE)
    judge("autoreset", lambda: _check_autoreset(make, run, seconds, repeatable))
    judge("truncation", lambda: _check_truncation(run, clock_terminates))
    judge("actions", lambda: _check_actions(make, seconds, repeatable))
    judge("speed", lambda: measure_speed(make, seconds))
    return findings


_UNREPEATABLE: tuple[Status, str] = ("skipped", "needs a seed that repeats its records")


def _sentence(error: Exception) -> str:
    if isinstance(error, SeedError):
        return str(error)
    return f"{first_line(error)}, which the vector environment should have raised as EnvironmentFailed"


def _named(names: list[str]) -> str:
    rest = len(names) - _LISTED
    return ", ".join(names[:_LISTED]) + (f" and {rest} more" if rest > 0 else "")


def _elements(name: str, mask: npt.NDArray[np.bool_]) -> list[str]:
    """Names of the elements of an array where `mask` is true; the array's own name if it is true everywhere."""
    if mask.all():
        return [name]
    return [f"{name}[{', '.join(map(str, index))}]" for index in np.argwhere(mask).tolist()]


def _check_spaces(spec: EnvSpec, bounds: dict[str, tuple[Any, Any]], notice: str, run: Run) -> tuple[Status, str]:
    """Every element is written, and is within the specification and the bounds of the space."""
    fill = np.array(FILL, np.uint8)[np.arange(len(run.reward)) % 2][:, None]
    parts = {**run.observation, "reward": run.reward, "terminated": run.terminated, "truncated": run.truncated}
    for name, part in parts.items():
        written = np.ascontiguousarray(part).view(np.uint8).reshape(len(part), -1) != fill
        if not written.any(axis=0).all():
            return "failure", f"parts of {name} were never written: each reset and step must write every element"
    for name, flags in (("terminated", run.terminated), ("truncated", run.truncated)):
        if (flags > 1).any():
            return "failure", f"{name} holds {flags.max()}; it must be 0 or 1"
    for name, array in spec.arrays.items():
        part = run.observation[name]
        if part.dtype.kind == "f" and not np.isfinite(part).all():
            return "failure", f"{name} holds {part[~np.isfinite(part)][0]}; numbers must be finite"
        if array.categories:
            counts = np.array(array.categories).reshape(array.shape)
            if ((part < 0) | (part >= counts)).any():
                return "failure", f"{name} holds categories from {part.min()} to {part.max()} of {_named_counts(array)}"
        if array.binary and not np.isin(part, array.binary).all():
            return "failure", f"{name} holds values other than {array.binary[0]} and {array.binary[1]}"
    beyond = []
    for name, (low, high) in bounds.items():
        mask = ((run.observation[name] < low) | (run.observation[name] > high)).any(axis=(0, 1))
        beyond += _elements(name, np.asarray(mask))
    if beyond:
        return "warning", f"{_named(beyond)} went beyond the bounds of the observation space: correct the bounds"
    if notice:
        return "warning", notice
    arrays = ", ".join(f"{name} {list(a.shape) or 'scalar'} {a.dtype}" for name, a in spec.arrays.items())
    return "ok", f"{arrays}; {_describe(spec.action)}"


def _named_counts(array: Any) -> str:
    return f"{array.categories[0]}" if len(array.categories) == 1 else _named([str(n) for n in array.categories])


def _describe(action: ActionSpec) -> str:
    if action.size:
        return f"an action is {action.size} number{'s' if action.size > 1 else ''}"
    if len(action.categories) == 1:
        return f"an action is one of {action.categories[0]}"
    return f"an action is {len(action.categories)} choices, of {_named([str(n) for n in action.categories])}"


def _check_frames(spec: EnvSpec, run: Run) -> tuple[Status, str]:
    """Observations change, and so does each element of a vector observation."""
    moved = np.zeros(run.reward[1:].shape, bool)
    dead = []
    for name, array in spec.arrays.items():
        part = run.observation[name]
        changed = part[1:] != part[:-1]
        moved |= changed.reshape(*moved.shape, -1).any(axis=-1)
        # Many pixels of an image never change, but a sensor must.
        if len(array.shape) <= 1:
            dead += _elements(name, np.asarray((part == part[0, 0]).all(axis=(0, 1))))
    if not moved.any():
        return "warning", f"no observation changes in {len(moved):,} steps: correct only if there is nothing to observe"
    still = 1 - float(moved.mean())
    if still > 0.5:
        return "warning", f"{still:.0%} of the steps do not change the observation"
    if dead:
        return (
            "warning",
            f"{_named(dead)} never changed in {len(moved):,} steps: an agent learns nothing from a constant",
        )
    return "ok", f"{1 - still:.0%} of the steps change the observation"


def _check_rewards(run: Run) -> tuple[Status, str]:
    """Rewards are finite and not constant."""
    rewards = run.reward[~run.first]
    bad = ~np.isfinite(rewards)
    if bad.any():
        return "failure", f"{bad.sum():,} of {len(rewards):,} rewards are not finite, such as {rewards[bad][0]}"
    if rewards.min() == rewards.max():
        returns = {episode.reward for episode in episodes_of(run)}
        if len(returns) < 2:
            return (
                "warning",
                f"each of {len(rewards):,} rewards was {rewards[0]:g}: random actions give no learning signal",
            )
        return "ok", f"always {rewards[0]:g}, and episodes' sums differ"
    return "ok", f"from {rewards.min():g} to {rewards.max():g}, mean {rewards.mean():.3g}"


def _check_seeding(make: MakeEnv, seconds: float) -> tuple[Status, str]:
    """A seed and actions determine the records, after another reset and in a rebuilt vector; another seed differs."""
    with driving(make, 1) as driver:
        run = driver.play(1, _REPLAY, seconds / 4)
        again = driver.play(1, 0, 0, script=run.actions)
        other = driver.play(2, 0, 0, script=run.actions)
    if difference := run.difference(again):
        return (
            "failure",
            f"after two resets with the same seed, the same actions lead to different records, first {difference}",
        )
    with driving(make, 1) as driver:
        rebuilt = driver.play(1, 0, 0, script=run.actions)
    if difference := run.difference(rebuilt):
        return (
            "failure",
            f"in a rebuilt vector, the same seed and actions lead to different records, first {difference}",
        )
    if run.difference(other) is None:
        return (
            "warning",
            f"seeds 1 and 2 lead to the same {len(run.actions)} steps: nothing is random, or the seed has no effect",
        )
    return "ok", f"a seed repeats {len(run.actions)} steps, another seed changes them"


def _check_isolation(make: MakeEnv, seconds: float) -> tuple[Status, str]:
    """Environment i of a vector with seed s plays like a single environment with seed s + i.

    If the environments share one random generator, it plays the same whatever actions the others take, until one is
    reset.
    """
    last = _ENVS - 1
    with driving(make, _ENVS) as driver:
        many = driver.play(40, _REPLAY, seconds / 2)
        if getattr(driver.env, "one_generator", False):
            others = [
                np.concatenate([b[:last], a[last:]]) for a, b in zip(many.actions, many.actions[::-1], strict=True)
            ]
            again = driver.play(40, 0, 0, script=others)
            if difference := many.until_end().column(last).difference(again.until_end().column(last)):
                return (
                    "failure",
                    f"environment {last} of {_ENVS} depends on the actions of the others, first in {difference}",
                )
            return "ok", f"{_ENVS} environments in one vector do not affect each other before one of them is reset"
    with driving(make, 1) as driver:
        alone = driver.play(40 + last, 0, 0, script=[actions[last : last + 1] for actions in many.actions])
    if difference := alone.difference(many.column(last)):
        return "failure", (
            f"environment {last} of {_ENVS} behaves differently than alone with its seed, first in {difference}: "
            "environments share state, or their seeds are not consecutive"
        )
    return "ok", f"{_ENVS} environments in one vector do not affect each other"


def _check_autoreset(make: MakeEnv, run: Run, seconds: float, repeatable: bool) -> tuple[Status, str]:
    """After a final record comes the first of a new episode; the action on the final one is ignored."""
    first, final = run.first, run.final
    if final[0].any():
        return "failure", "a reset returns a final record; it must begin an episode"
    if run.reward[first].any():
        return (
            "failure",
            f"the first record of an episode has reward {run.reward[first & (run.reward != 0)][0]:g}, not 0",
        )
    if (final & first).any():
        return "failure", "the record after a final one is final too; it must be the first of a new episode"
    ended = int(final[:-1].sum())
    if not ended:
        return "skipped", f"no episode ended in {len(final) - 1:,} steps"
    carried_on = carried_ends(run)
    what = "begins with the final observation of the last one"
    # Episodes may end in their first state, and a bandit's single step may observe the next context.
    if carried_on >= _DIFFERENT_ENDS and max(episode.length for episode in episodes_of(run)) > 1:
        return "failure", f"each new episode {what}: reset does not start a new episode"
    if repeatable and (wrong := _check_action_on_final(make, seconds)):
        return "failure", wrong
    if carried_on:
        return (
            "warning",
            f"each of {ended:,} new episodes {what}: unless they end in their first state, reset does nothing",
        )
    return "ok", f"{ended:,} episodes ended, and each was followed by a first record"


def _check_action_on_final(make: MakeEnv, seconds: float) -> str | None:
    with driving(make, 1) as driver:
        run = driver.play(1, _STEPS, seconds / 2, until_final=True)
        if not run.final[-1].any():
            return None
        one, two = (extreme[None] for extreme in extremes(driver.env.spec.action))
        played = driver.play(1, 0, 0, script=[*run.actions, one, one, one])
        again = driver.play(1, 0, 0, script=[*run.actions, two, one, one])
    difference = played.difference(again)
    return f"the action on a final record changes what follows, first {difference}" if difference else None


def _check_truncation(run: Run, clock_terminates: bool) -> tuple[Status, str, Any]:
    """Time limits truncate, other ends terminate; only the author can distinguish them, so this only warns.

    Terminated time limits are no warning if the family declares `clock_terminates`, because its simulator does not
    distinguish them.
    """
    episodes = episodes_of(run)
    if clock_terminates and not episodes:
        return "skipped", f"no episode ended in {len(run.reward) - 1:,} steps; these environments end by a clock", None
    if not episodes:
        return "warning", (
            f"no episode ended in {len(run.reward) - 1:,} steps: if none ever does, set a limit where it is "
            "registered, or environment.max_episode_steps"
        ), None  # fmt: skip
    terminated = [e.length for e in episodes if e.terminated]
    truncated = [e.length for e in episodes if not e.terminated]
    value = {"terminated": len(terminated), "truncated": len(truncated)}
    longest = max(e.length for e in episodes)
    if longest >= _SHORT and terminated.count(longest) >= 3 and not clock_terminates:
        return "warning", (
            f"{terminated.count(longest)} episodes were terminated after exactly {longest:,} steps, the largest "
            "length: if that is a time limit, it must truncate instead"
        ), value  # fmt: skip
    if len(set(truncated)) >= 3 and not terminated:
        lengths = _named([f"{n:,}" for n in sorted(set(truncated))])
        return "warning", (
            f"episodes are truncated after different numbers of steps ({lengths}) and none is terminated: an end that "
            "is not a time limit must terminate"
        ), value  # fmt: skip
    return (
        "ok",
        f"{len(terminated):,} episodes terminated, {len(truncated):,} truncated, {longest:,} steps at most",
        value,
    )


def _check_actions(make: MakeEnv, seconds: float, repeatable: bool) -> tuple[Status, str]:
    """Every valid action is accepted, invalid ones are refused with EnvironmentFailed; actions make a difference."""
    with driving(make, 1) as driver:
        spec = driver.env.spec
        final = False
        driver.reset(1)
        every = every_action(spec.action)
        for action in every:
            for _ in range(2 if final else 1):  # on a final record the action is ignored
                try:
                    record = driver.step(action[None])
                except Exception as error:
                    return "failure", f"action {action.tolist()} fails: {_sentence(error)}"
            final = bool(record.terminated[0] or record.truncated[0])
        low, high = extremes(spec.action)
        for wrong in (high + 1, low - 1) if not spec.action.size else (high * np.float32(np.nan),):
            try:
                driver.step(wrong[None])
            except EnvironmentFailed:
                continue
            return "failure", f"action {wrong.tolist()} is accepted; it must be refused with EnvironmentFailed"
        driver.step(low[None])
        if repeatable and (low != high).any():
            run = driver.play(1, _REPLAY, seconds / 4)
            one, two = (driver.play(1, 0, 0, script=[a[None]] * len(run.actions)) for a in (low, high))
            if one.difference(two) is None and run.difference(one) is None:
                return "warning", f"actions made no difference in {len(run.actions)} steps"
    return "ok", f"{len(every)} different actions accepted, invalid ones refused"
