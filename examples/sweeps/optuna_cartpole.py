"""Search settings for CartPole with Optuna: pip install optuna, then python examples/sweeps/optuna_cartpole.py.

Each trial is a run of `seed train` in its own folder. The study is stored in a file: after an interruption, the same
command resumes it. `seed compare FOLDER` reads the runs like any others.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import optuna

import seedcli


def trained_return(trial: optuna.Trial, folder: Path, steps: int) -> float:
    """Mean return of 20 episodes with the settings of a trial, after training."""
    settings = {
        "training.learning_rate": trial.suggest_float("training.learning_rate", 1e-4, 1e-2, log=True),
        "agent.entropy_cost": trial.suggest_float("agent.entropy_cost", 1e-4, 0.1, log=True),
        "training.unroll_length": trial.suggest_int("training.unroll_length", 10, 40, step=10),
    }
    run = seedcli.train(
        "cartpole_vtrace",
        steps=steps,
        seed=trial.number + 1,
        set=settings,
        logdir=folder / f"trial-{trial.number}",
        overwrite=True,
        quiet=True,
    )
    return run.evaluate(episodes=20, greedy=False, quiet=True).mean


def main() -> None:
    """Run the remaining trials and print the best."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("runs/optuna"), help="of the study and its runs")
    parser.add_argument("--trials", type=int, default=20, help="in all, those of earlier starts included")
    parser.add_argument("--steps", type=int, default=100_000, help="environment steps of each run")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    study = optuna.create_study(
        study_name="cartpole",
        storage=f"sqlite:///{given.folder}/study.db",
        direction="maximize",
        load_if_exists=True,
    )
    finished = len(study.get_trials(states=[optuna.trial.TrialState.COMPLETE]))
    study.optimize(lambda trial: trained_return(trial, given.folder, given.steps), max(0, given.trials - finished))
    print(f"best of {given.trials}: return {study.best_value:.1f} with {study.best_params}")


if __name__ == "__main__":
    main()
