"""`seed bench topology`: try every ratio of inference to training devices on a host and recommend the best."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Sequence
from statistics import mean
from typing import Any, Literal

import tensorflow as tf

from seedcli.bench.generated import environment_spec
from seedcli.bench.output import machine, print_progress, show, table
from seedcli.bench.topology_trial import Trial, batch_rows, try_plan
from seedcli.config.schema import Config
from seedcli.config.topology import Inventory, Plan, make_plan
from seedcli.errors import SeedError, UsageError
from seedcli.roles.learner.core import share_cores
from seedcli.specs import EnvSpec
from seedcli.training.devices import find_inventory, prepare

Share = int | Literal["auto"]


def run_bench_topology(config: Config, *, seconds: float, json_output: bool) -> int:
    """Try every ratio on generated observations and batches, and recommend one.

    Args:
        config: what is trained, and for which fleet (`actors.count` times `actors.envs`); the numbers of devices in
            it are ignored.
        seconds: length of each measurement.
        json_output: print JSON instead of a table.

    Raises:
        UsageError: the configuration is for several hosts, or its topology is not possible here.
        SeedError: no ratio could be measured.
    """
    if len(config.topology.hosts) > 1:
        raise UsageError(
            f"topology.hosts = {list(config.topology.hosts)} must be left out: seed bench topology tries the devices "
            "of one host"
        )
    # Every ratio retraces the same functions, and TensorFlow would warn about that.
    tf.get_logger().setLevel(logging.ERROR)
    inventory = find_inventory()
    plans, left_out = ratios(config, inventory)
    spec = environment_spec(config.environment)
    prepare(plans[0])
    share_cores(config)
    trials, failed = measure_plans(config, spec, plans, seconds, print_progress)
    best = max(trials, key=lambda trial: trial.env_steps_per_second)
    notes = _notes(config, best, left_out, failed)
    result = {
        "bench": "topology",
        "preset": config.run.preset,
        "machine": machine(),
        "platform": plans[0].platform,
        "devices": plans[0].devices,
        "virtual": plans[0].virtual,
        "models": list(inventory.models),
        "environments": config.actors.count * config.actors.envs,
        "trainings_of_a_step": best.trainings,
        "seconds": seconds,
        "ratios": [_as_json(trial) for trial in trials],
        "left_out": left_out,
        "failed": failed,
        "recommended": {
            "training_devices": len(best.plan.training),
            "inference_devices": len(best.plan.inference),
            "set": _sets(best.plan),
        },
        "notes": notes,
    }
    status = show(result, json_output, [_table(config, trials)], notes)
    if not json_output:
        print(_recommendation(best))  # not wrapped to the terminal's width, so that it can be pasted
    return status


def ratios(config: Config, inventory: Inventory) -> tuple[list[Plan], list[str]]:
    """The plans to try: every split of the devices into two parts, and all devices doing both.

    Returns:
        The plans, fewest training devices first, and sentences on those that are impossible.

    Raises:
        UsageError: none is possible.
    """
    there = make_plan(_with_shares(config, "auto", "auto"), inventory).devices
    wanted = [(number, there - number) for number in range(1, there)] + [(there, there)]
    plans, left_out = [], []
    for training, inference in wanted:
        try:
            plans.append(make_plan(_with_shares(config, training, inference), inventory))
        except UsageError as error:
            left_out.append(f"training on {training} of {there} devices is left out: {error}")
    return plans, left_out


def _with_shares(config: Config, training: Share, inference: Share) -> Config:
    shares = {"training_devices": training, "inference_devices": inference}
    return config.model_copy(update={"topology": config.topology.model_copy(update=shares)})


def measure_plans(
    config: Config, spec: EnvSpec, plans: Sequence[Plan], seconds: float, progress: Callable[[str], None]
) -> tuple[list[Trial], list[str]]:
    """Try the plans one after the other; TensorFlow has been prepared for their devices.

    Returns:
        The trials, and messages on plans that failed, mostly for lack of memory.

    Raises:
        SeedError: all of them failed; the first one's reason.
    """
    trials, failed, first = [], [], None
    for plan in plans:
        progress(f"{_shares(plan)}: {batch_rows(config, len(plan.inference))} observations a batch")
        try:
            trials.append(try_plan(config, spec, plan, seconds))
        except SeedError as error:
            failed.append(f"{_shares(plan)} failed: {error}")
            first = first or error
        gc.collect()  # networks and traces of this one, before the next takes its memory
    if first is not None and not trials:
        raise first
    return trials, failed


def _shares(plan: Plan) -> str:
    training, inference = len(plan.training), len(plan.inference)
    if plan.devices == 1:
        return "one device does both"
    if len(plan.shared) == plan.devices:
        return f"all {plan.devices} devices do both"
    return f"{training} train, {inference} infer"


def _sets(plan: Plan) -> list[str]:
    sets = [
        f"topology.training_devices={len(plan.training)}",
        f"topology.inference_devices={len(plan.inference)}",
    ]
    return [*sets, "topology.platform=cpu", f"topology.virtual_devices={plan.devices}"] if plan.virtual else sets


def _recommendation(best: Trial) -> str:
    sets = " ".join(f"--set {value}" for value in _sets(best.plan))
    return f"recommended ({best.env_steps_per_second:,.0f} environment steps/s, {best.limit} limits): {sets}"


def _notes(config: Config, best: Trial, left_out: Sequence[str], failed: Sequence[str]) -> list[str]:
    plan, notes = best.plan, []
    if plan.devices == 1:
        notes.append("there is one device, so there is only one way: it infers and trains in turn")
    if plan.virtual:
        notes.append(
            f"these {plan.devices} devices are parts of one processor and share its cores: this checks what works, "
            "but does not predict the speed of real devices"
        )
    fleet = config.actors.count * config.actors.envs
    notes.append(f"for a fleet of {fleet} environments (actors.count times actors.envs); environments are not played")
    if best.trainings != 1.0:
        notes.append(
            f"each step is trained on {best.trainings:g} times; sampling from the replay is not measured here "
            "(seed bench replay)"
        )
    return [*notes, *left_out, *failed]


def _table(config: Config, trials: Sequence[Trial]) -> Any:
    devices = f"{trials[0].plan.devices} {trials[0].plan.platform.upper()}{'s' if trials[0].plan.devices > 1 else ''}"
    shown = table(
        f"{config.run.preset or config.environment.id} on {devices}: inference and training at the same time",
        "train", "infer", "env\nsteps/s", "trained\nsteps/s", "batch\nrows", "train\nbusy", "infer\nbusy",
        "transfer\nms", "limit",
    )  # fmt: skip
    shown.padding = (0, 1, 0, 0)
    for trial in trials:
        shown.add_row(
            str(len(trial.plan.training)), str(len(trial.plan.inference)), f"{trial.env_steps_per_second:,.0f}",
            f"{trial.trained_steps_per_second:,.0f}", str(trial.batch_rows), f"{trial.training_busy:.0%}",
            f"{mean(trial.inference_busy):.0%}", f"{trial.transfer_ms:.1f}", trial.limit,
        )  # fmt: skip
    return shown


def _as_json(trial: Trial) -> dict[str, Any]:
    plan = trial.plan
    return {
        "training_devices": [plan.name(device) for device in plan.training],
        "inference_devices": [plan.name(device) for device in plan.inference],
        "env_steps_per_second": trial.env_steps_per_second,
        "inference_rows_per_second": trial.inference_rows_per_second,
        "trained_steps_per_second": trial.trained_steps_per_second,
        "inference_batch_rows": trial.batch_rows,
        "unrolls_per_device": plan.columns,
        "training_utilisation": trial.training_busy,
        "inference_utilisation": list(trial.inference_busy),
        "transfer_ms": trial.transfer_ms,
        "transfer_mb": trial.transfer_mb,
        "limit": trial.limit,
        "seconds": trial.seconds,
    }
