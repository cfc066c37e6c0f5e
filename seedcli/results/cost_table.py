"""`seed cost`: the cost of a billion frames as a table or as JSON."""

from __future__ import annotations

import dataclasses
import json

from rich.console import Console
from rich.table import Table

from seedcli.results.cost import Measured, Prices
from seedcli.telemetry.numbers import number, tenth


def show_cost(found: Measured, prices: Prices, json_output: bool) -> None:
    """Print what a billion frames cost with a run's fleet, and with one whose actors fill the learner."""
    fleets = {"measured": found.fleet, "learner_filled": found.filled}
    bills = {name: prices.bill(fleet) for name, fleet in fleets.items()}
    if json_output:
        costs = {name: {**dataclasses.asdict(bill), "total": bill.total} for name, bill in bills.items()}
        print(json.dumps({name: {**dataclasses.asdict(fleets[name]), **costs[name]} for name in fleets}))
        return
    table = Table(title="A billion frames")
    rows = {
        "GPUs of the learner": [f"{fleet.gpus:g}" for fleet in fleets.values()],
        "cores of the learner": [tenth(fleet.learner_cores) for fleet in fleets.values()],
        "cores of the actors": [tenth(fleet.actor_cores) for fleet in fleets.values()],
        "frames/s": [number(fleet.frames_per_second) for fleet in fleets.values()],
        "hours": [number(bill.hours) for bill in bills.values()],
        "cost of the learner": [f"{bill.learner:,.2f}" for bill in bills.values()],
        "cost of the actors": [f"{bill.actors:,.2f}" for bill in bills.values()],
        "cost": [f"{bill.total:,.2f}" for bill in bills.values()],
    }
    for name in ("", "as measured", "learner filled"):
        table.add_column(name, justify="right" if name else "left")
    for name, cells in rows.items():
        table.add_row(name, *cells, end_section=name == "hours")
    console = Console()
    console.print(table)
    console.print(
        f"The learner was busy for {found.busy:.0%} of the time and the actors stepped for {found.stepping:.0%}: "
        f"it can use {tenth(found.filled.actor_cores)} actor cores.",
        soft_wrap=True,
    )
    if found.shared:
        console.print(
            "Learner and actors shared the cores of one machine: with actors on others the learner can use more.",
            soft_wrap=True,
        )
