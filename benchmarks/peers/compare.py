"""Trains seed and its peers in turn on the same tasks and prints steps/s and the time to a threshold.

    python benchmarks/peers/compare.py --rounds 3 --seconds 120

Run it with the Python in which seedcli is installed, on an otherwise idle machine. Each peer is installed into its own
virtual environment below --results. A round trains every entry of every task once, one after another. After an
interruption the same command resumes: runs that have a result are not repeated. The table is printed, and written to
--page if given.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from table import markdown
from tasks import FRAMEWORKS, TASKS, Entry, Task

from seedcli.bench.output import machine
from seedcli.results.metrics_file import read_columns

HERE = Path(__file__).resolve().parent
START_SECONDS = 600.0  # until the first line of progress
LEAST_SECONDS = 60.0  # minimum length of a run, even if it reaches its threshold earlier
STOP_SECONDS = 30.0
BUSY_SECONDS = 5.0  # before a run: measures the load of other processes
BEGIN, END = "<!-- table of benchmarks/peers/compare.py -->", "<!-- end of the table -->"
PACKAGES = (
    "seedcli",
    "tensorflow",
    "stable-baselines3",
    "sample-factory",
    "ray",
    "torch",
    "gymnasium",
    "ale-py",
    "numpy",
)


def main() -> int:
    """Run the remaining runs, then print the table; returns 1 if a run failed."""
    options = parse()
    runs = [
        (task, entry, number)
        for number in range(1, options.rounds + 1)
        for task in TASKS
        for entry in TASKS[task].entries
        if chosen(options.only, task, entry)
    ]
    if not runs:
        sys.exit(f"--only {' '.join(options.only)} chooses nothing: give a task ({', '.join(TASKS)}) or a framework "
                 f"({', '.join(FRAMEWORKS)}), or TASK/FRAMEWORK")  # fmt: skip
    pythons = {name: install(name, options.results) for name in dict.fromkeys(entry.framework for _, entry, _ in runs)}
    for index, (task, entry, number) in enumerate(runs, 1):
        result = result_path(options, task, entry, number)
        if not result.exists():
            print_progress(
                f"[{index}/{len(runs)}] round {number}, {task}: {FRAMEWORKS[entry.framework]} {entry.algorithm}"
            )
            found = train(TASKS[task], entry, number, result.parent, options.seconds, pythons[entry.framework])
            write(result, found)
            print_progress(f"  {found['error'] or str(round(found['steps_per_second'])) + ' steps/s'}")
    results = {(task, entry): gather(options, task, entry, options.rounds) for task, entry, _ in runs}
    text = markdown(results, options.seconds)
    print(text)
    if options.page:
        insert(options.page, text)
    return int(any(each["error"] for rounds in results.values() for each in rounds))


def parse() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="rounds (3)")
    parser.add_argument("--seconds", type=float, default=120.0, metavar="S", help="length of each run (120)")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="tasks, frameworks, or TASK/FRAMEWORK")
    parser.add_argument("--results", type=Path, default=Path("runs/peers"), metavar="DIR", help="folder (runs/peers)")
    parser.add_argument("--page", type=Path, metavar="FILE", help="replace the table of this page, docs/comparison.md")
    options = parser.parse_args()
    if options.rounds < 1 or options.seconds <= 0:
        parser.error("--rounds and --seconds must be positive")
    if options.page and BEGIN not in options.page.read_text():
        parser.error(f"--page {options.page} has no line {BEGIN}")
    options.results = options.results.absolute()
    return options


def chosen(only: Sequence[str], task: str, entry: Entry) -> bool:
    """Whether --only chooses an entry."""
    return not only or bool({task, entry.framework, f"{task}/{entry.framework}"} & set(only))


def install(framework: str, results: Path) -> Path:
    """The Python of a framework, which is installed first if necessary."""
    if framework == "seed":
        return Path(sys.executable)
    folder, wanted = results / "environments" / framework, HERE / "requirements" / f"{framework}.txt"
    python, done = folder / "bin" / "python", folder / "installed.txt"
    if not done.exists() or done.read_text() != wanted.read_text():
        print_progress(f"installing {FRAMEWORKS[framework]} into {folder}")
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "-r", wanted], check=True)
        shutil.copy(wanted, done)
    return python


def result_path(options: argparse.Namespace, task: str, entry: Entry, number: int) -> Path:
    """The result of a run, in its folder."""
    folder: Path = options.results / task / entry.name / f"{options.seconds:g}s-round-{number}"
    return folder / "result.json"


def train(task: Task, entry: Entry, number: int, folder: Path, seconds: float, python: Path) -> dict[str, Any]:
    """Train once, and return the result."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    settings = {**task.settings, "seed": number}
    if entry.framework == "seed":
        progress = folder / "run" / "metrics.jsonl"
        command = [str(python), "-m", "seedcli", "train", *entry.seed, "--seed", str(number), "--no-live"]
        command += ["--logdir", str(folder / "run"), "--set", "telemetry.interval_seconds=0.5"]
    else:
        progress = folder / "progress.jsonl"
        command = [str(python), str(HERE / f"run_{entry.framework}.py"), json.dumps(settings), str(progress)]
    busy = psutil.cpu_percent(BUSY_SECONDS) / 100  # the load average would include the previous run
    with (folder / "log").open("wb") as log:
        started = time.time()
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        try:
            error = watch(process, progress, task.threshold, seconds)
            columns = read(progress)  # before it is stopped: saving and shutting down are not training time
        finally:
            stop(process)
    speed = steps_per_second(columns, seconds)
    error = error or ("" if np.isfinite(speed) else "it made too few steps to measure")
    reached = reached_at(columns, task.threshold)
    return {
        "error": f"{error}; see {folder / 'log'}" if error else "",
        "steps_per_second": float(speed) if np.isfinite(speed) else 0.0,
        "seconds_to_threshold": float(reached - started) if np.isfinite(reached) else None,
        "seconds": float(columns["time"][-1] - started) if len(columns["time"]) else 0.0,
        "env_steps": float(columns["env_steps"][-1]) if len(columns["time"]) else 0.0,
        "threshold": task.threshold,
        "command": command,
        "versions": versions(python),
        "machine": {**machine(), "busy_before": busy},
    }


def watch(process: subprocess.Popen[bytes], progress: Path, threshold: float, seconds: float) -> str:
    """Wait until a run has been trained for long enough; returns the error, "" if there is none."""
    started = time.time()
    while process.poll() is None:
        time.sleep(0.5)  # polls, because another process writes the file
        columns = read(progress)
        if not len(columns["time"]):
            if time.time() - started > START_SECONDS:
                return f"no step within {START_SECONDS:.0f} s"
            continue
        elapsed = time.time() - columns["time"][0]
        if elapsed > seconds or (elapsed > LEAST_SECONDS and np.isfinite(reached_at(columns, threshold))):
            return ""
    return f"it ended with status {process.returncode}" if process.returncode else ""


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a run and all its processes."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)


def read(progress: Path) -> Mapping[str, np.ndarray]:
    """The lines of progress with at least one step."""
    columns = read_columns(progress, ("time", "env_steps", "episodes", "episode_return_100"))
    return {name: values[columns["env_steps"] > 0] for name, values in columns.items()}


def steps_per_second(columns: Mapping[str, np.ndarray], seconds: float) -> float:
    """The rate after a warm-up of 20 s, or a quarter of a shorter run; NaN if it is unknown."""
    times, steps = columns["time"], columns["env_steps"]
    if not len(times):
        return np.nan
    kept = np.flatnonzero(times >= times[0] + min(20.0, seconds / 4))
    if len(kept) < 2:
        return np.nan
    return float((steps[kept[-1]] - steps[kept[0]]) / (times[kept[-1]] - times[kept[0]]))


def reached_at(columns: Mapping[str, np.ndarray], threshold: float) -> float:
    """Unix seconds at which the mean of 100 episodes first reached the threshold; inf if it has not."""
    reached = np.flatnonzero((columns["episode_return_100"] >= threshold) & (columns["episodes"] >= 100))
    return float(columns["time"][reached[0]]) if len(reached) else np.inf


def versions(python: Path) -> dict[str, str]:
    """Package → version of an environment."""
    code = (
        "import importlib.metadata as m, json, sys\n"
        "found = {d.metadata['Name'].lower().replace('_', '-'): d.version for d in m.distributions()}\n"
        "print(json.dumps({n: found[n] for n in sys.argv[1:] if n in found}))"
    )
    out = subprocess.run([python, "-c", code, *PACKAGES], check=True, capture_output=True, text=True).stdout
    found: dict[str, str] = json.loads(out)
    return found


def gather(options: argparse.Namespace, task: str, entry: Entry, rounds: int) -> list[dict[str, Any]]:
    """The results of an entry, one per round."""
    return [json.loads(result_path(options, task, entry, number).read_text()) for number in range(1, rounds + 1)]


def write(path: Path, result: Mapping[str, Any]) -> None:
    """Write a result atomically: a killed run has none."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(result, indent=1))
    temporary.rename(path)


def insert(page: Path, text: str) -> None:
    """Replace the table of a page."""
    before, _, rest = page.read_text().partition(BEGIN)
    page.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{rest.partition(END)[2]}")


def print_progress(line: str) -> None:
    """Print a line to stderr."""
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
