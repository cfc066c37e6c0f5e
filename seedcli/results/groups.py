"""Groups of runs that differ only in their seed; plots and tables show means over a group."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seedcli.config.layers import flatten
from seedcli.config.toml_text import format_value
from seedcli.errors import UsageError
from seedcli.results.runs import RunData, collect_runs, read_run

# Criteria of grouping, besides a key of config.toml.
_NAMED = {"preset": "run.preset", "environment": "environment.id", "algorithm": "agent.algorithm"}
BY_RUN = "run"
# Prefixes of keys that may differ between runs of one group: seed, connections, telemetry, checkpoints and devices.
_IGNORED_KEYS = (
    *("run.seed", "net.", "telemetry.", "training.checkpoint", "training.keep_"),
    *(f"topology.{name}" for name in ("platform", "inference_", "training_", "virtual_", "xla", "host", "trust_")),
)


@dataclass(frozen=True)
class Group:
    """Runs of one setting and one task.

    Attributes:
        label: e.g. "pong_vtrace" or "training.batch_size = 8".
        task: family and id of the environment.
        runs: at least one, each with at least one line of metrics.
    """

    label: str
    task: str
    runs: Sequence[RunData]


@dataclass(frozen=True)
class Selection:
    """The selected runs, in groups.

    Attributes:
        groups: in the order of their first runs.
        warnings: one sentence each: runs that are left out, and groups whose runs differ in more than their seed.
    """

    groups: Sequence[Group]
    warnings: Sequence[str]

    @property
    def runs(self) -> list[RunData]:
        """All runs of the groups, in order."""
        return [run for group in self.groups for run in group.runs]

    @property
    def tasks(self) -> list[str]:
        """The tasks of the groups, in their order, without duplicates."""
        return list(dict.fromkeys(group.task for group in self.groups))


def select(paths: Sequence[Path], group_by: str) -> Selection:
    """Read runs and group them by task and by one value.

    Args:
        paths: folders of runs, or folders that hold some.
        group_by: "preset", "environment", "algorithm", "run" (each alone) or a key such as "training.batch_size".

    Raises:
        UsageError: a folder holds no run, a run is damaged, none has metrics, or there is no such key.
    """
    every = [read_run(path) for path in collect_runs(paths)]
    runs = [run for run in every if len(run.seconds)]
    warnings = [f"{run.path} has no metrics yet and is left out" for run in every if not len(run.seconds)]
    if not runs:
        raise UsageError(
            f"{every[0].path}{' and the others have' if len(every) > 1 else ' has'} no metrics yet: the first line of "
            "metrics.jsonl is written some seconds after training begins (telemetry.interval_seconds), try again then"
        )
    key = _NAMED.get(group_by, group_by)
    if group_by != BY_RUN and all(run.value(key) is None for run in runs):
        raise UsageError(_unknown(group_by, runs))
    groups: dict[tuple[str, str], list[RunData]] = {}
    for run in runs:
        groups.setdefault((run.task, _label(run, group_by)), []).append(run)
    made = [Group(label, task, members) for (task, label), members in groups.items()]
    return Selection(made, [*warnings, *filter(None, map(_difference, made))])


def _label(run: RunData, group_by: str) -> str:
    if group_by == BY_RUN:
        return str(run.path)
    if group_by == "preset":
        return run.preset
    value = run.value(_NAMED.get(group_by, group_by))
    return str(value) if group_by in _NAMED else f"{group_by} = {'-' if value is None else format_value(value)}"


def _unknown(group_by: str, runs: Sequence[RunData]) -> str:
    known = [*_NAMED, BY_RUN, *flat(runs[0].config)]
    near = difflib.get_close_matches(group_by, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"such as training.batch_size, or {', '.join([*_NAMED, BY_RUN])}"
    return f"--group-by {group_by}: none of these runs has such a key; give a key of their config.toml, {hint}"


def flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """Values by their full key: {"training": {"epochs": 1}} → {"training.epochs": 1}."""
    return {entry.key: entry.value for entry in flatten(config, "")}


def differences(runs: Sequence[RunData]) -> dict[str, list[Any]]:
    """Keys whose values differ between runs → each run's value, None where it has no such key."""
    values = [flat(run.config) for run in runs]
    keys = dict.fromkeys(key for each in values for key in each)
    table = {key: [each.get(key) for each in values] for key in keys}
    return {key: row for key, row in table.items() if any(value != row[0] for value in row)}


def _difference(group: Group) -> str:
    """A warning if the runs of a group differ in what may change their results; "" otherwise."""
    found = differences(group.runs)
    # A key that a run lacks belongs to another version of seed.
    keys = [key for key, values in found.items() if None not in values and not key.startswith(_IGNORED_KEYS)]
    if not keys:
        return ""
    more = f" and {len(keys) - 3} more values" if len(keys) > 3 else ""
    return (
        f"the {len(group.runs)} runs of {group.label} differ in {', '.join(keys[:3])}{more}, so they are not seeds of "
        f"one setting: --group-by {keys[0]} tells them apart"
    )
