"""`seed doctor --agent`: check whether an algorithm follows the rules of its protocol, in a separate process."""

from __future__ import annotations

import functools
import importlib
import json
import logging
import os
import shlex
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

import seedcli
from seedcli.config.choices import ALGORITHMS
from seedcli.config.conflicts import own_conflicts
from seedcli.config.schema import Config
from seedcli.config.sections import AgentConfig
from seedcli.config.sources import load_config
from seedcli.doctor.examination import CHECK_SECONDS, examine_in_process, print_findings
from seedcli.envs.conformance import Finding, Status
from seedcli.envs.placement import create_env_beside_tensorflow
from seedcli.envs.registry import check_environment
from seedcli.errors import EXIT_DONE, EXIT_FAILED, SeedError, first_line
from seedcli.tensorflow_import import import_tensorflow

if TYPE_CHECKING:
    from seedcli.agents.base import AlgorithmSpec

Result = tuple[Status, str]
_ENV = "CartPole-v1"  # where neither an environment nor a preset is given


@dataclass(frozen=True)
class Request:
    """What to check, as on the command line.

    Attributes:
        agent: the algorithm.
        preset, env, family, network, sets: see `seed train`; None: the default.
    """

    agent: str
    preset: str | None = None
    env: str | None = None
    family: str | None = None
    network: str | None = None
    sets: Sequence[str] = ()

    @property
    def _env(self) -> str | None:
        """The environment, if it is not the preset's."""
        return self.env if self.env is not None or self.preset is not None else _ENV

    def base(self) -> Config:
        """The configuration without what users' own code may add; see `load_config` for errors."""
        flags = {"--env": self._env, "--family": self.family}
        return load_config(self.preset, environ={}, flags=flags).config

    def config(self) -> Config:
        """The configuration; see `load_config` for errors."""
        flags = {"--env": self._env, "--family": self.family, "--agent": self.agent, "--network": self.network}
        return load_config(self.preset, environ={}, sets=self.sets, flags=flags).config

    def training_command(self, preset: str) -> str:
        """The `seed train` command, quoted for a shell, that trains what was checked; `preset`: if none was given."""
        words = ["seed", "train", "--preset", self.preset or preset, "--agent", self.agent]
        for flag, value in (("--network", self.network), ("--family", self.family), ("--env", self._env)):
            words += [flag, value] if value is not None else []
        for setting in self.sets:
            words += ["--set", setting]
        return shlex.join(words)


def run_doctor_agent(request: Request, json_output: bool) -> int:
    """Check an algorithm and print the findings to stdout.

    Args:
        request: what to check.
        json_output: print JSON instead of a table.

    Returns:
        1 if a check failed, else 0.

    Raises:
        UsageError: there is no such preset or environment.
    """
    check_environment(request.base().environment)
    if not json_output:
        print(f"checking {request.agent} (some seconds)", file=sys.stderr)
    findings = examine(request, progress=lambda line: print(line, file=sys.stderr))
    failed = [finding.name for finding in findings if finding.status == "failure"]
    preset = next((str(finding.value) for finding in findings if finding.name == "build"), "")
    if json_output:
        report = {"agent": request.agent, "ok": not failed, "findings": [asdict(finding) for finding in findings]}
        print(json.dumps(report, indent=2, ensure_ascii=False))
    else:
        print_findings(Console(), request.agent, findings, "" if failed else request.training_command(preset))
    return EXIT_FAILED if failed else EXIT_DONE


def examine(
    request: Request, *, limit: float = CHECK_SECONDS, progress: Callable[[str], None] = lambda line: None
) -> list[Finding]:
    """Run the checks in a separate process; see `examine_in_process`."""
    hangs = "the agent's code hangs or is very slow"
    return examine_in_process(
        _examine, (request,), first="class", hangs=hangs, loading="TensorFlow", limit=limit, progress=progress
    )


def _examine(connection: Connection, request: Request) -> None:
    # What users' code prints must not mix with results.
    os.dup2(2, 1)
    import_tensorflow()
    importlib.import_module("seedcli.doctor.agent_learning")  # Keras and everything else that is slow to import
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    check_agent(request, begin=connection.send, found=connection.send)
    connection.send(None)


def check_agent(
    request: Request,
    *,
    begin: Callable[[str], None] = lambda name: None,
    found: Callable[[Finding], None] = lambda finding: None,
) -> list[Finding]:
    """Check an algorithm in this process, on the CPU.

    Args:
        request: what to check.
        begin: called with the name of each check before it begins.
        found: called with each finding.

    Returns:
        A finding for each check; if the agent cannot be built, those up to that point.
    """
    judge = _Judge(begin, found)

    def configuration() -> Result:
        made.append(request.config())
        return "ok", f"agent.algorithm = {request.agent}, T = {made[0].training.unroll_length}"

    made: list[Config] = []
    if not judge("class", lambda: _check_class(request.agent)):
        return judge.findings
    judge("conflicts", lambda: _check_conflicts(request))
    if judge("configuration", configuration):
        _check_built(made[0], judge)
    return judge.findings


class _Judge:
    """Runs the checks in order, except those that would only repeat an earlier finding.

    Args:
        begin, found: see `check_agent`.

    Attributes:
        findings: of all checks until now.
    """

    def __init__(self, begin: Callable[[str], None], found: Callable[[Finding], None]) -> None:
        self.findings: list[Finding] = []
        self._begin, self._found = begin, found
        self._passed: set[str] = set()

    def __call__(self, name: str, check: Callable[[], Result | tuple[Status, str, str]], *needs: str) -> bool:
        """Run a check if those that it needs have passed; returns whether it passed."""
        self._begin(name)
        missing = [need for need in needs if need not in self._passed]
        try:
            finding = Finding(name, *check()) if not missing else Finding(name, "skipped", _needs(missing[0]))
        except Exception as error:
            finding = Finding(name, "failure", _sentence(error))
        if not missing and finding.status != "failure":
            self._passed.add(name)
        for other in self.findings:
            if (other.status, other.detail) == ("failure", finding.detail):
                finding = Finding(name, "skipped", _needs(other.name))
        self.findings.append(finding)
        self._found(finding)
        return name in self._passed


def _needs(check: str) -> str:
    return f"needs the check {check!r} to pass"


def _check_class(name: str) -> Result:
    found, config = ALGORITHMS.load(name), ALGORITHMS.config(name)
    inherited: type[AgentConfig] = next((b.Config for b in found.__mro__[1:] if hasattr(b, "Config")), AgentConfig)
    fields = {key: field for key, field in config.model_fields.items() if key not in inherited.model_fields}
    keys = sorted(field.alias or key for key, field in fields.items())
    own = f"with keys of its own: {', '.join(keys)}" if keys else "without keys of its own"
    return "ok", f"{found.__module__}:{found.__qualname__}, {config.__qualname__} {own}"


def _check_conflicts(request: Request) -> Result:
    """`conflicts` yields sentences; called with the keys' defaults."""
    config = ALGORITHMS.config(request.agent)
    own = config.model_construct(algorithm=request.agent)
    found = list(own_conflicts(own, request.base().model_copy(update={"agent": own})))
    return "ok", f"{len(found)} with the defaults of its keys, each as text" if found else "none with its defaults"


def _check_built(config: Config, judge: _Judge) -> None:
    """Build the agent for the environment, and check what it does."""
    import numpy as np
    import tensorflow as tf

    from seedcli.agents.registry import create_agent
    from seedcli.doctor import agent_acting as acting
    from seedcli.doctor.agent_case import COLUMNS, SEED, Case, Played, play
    from seedcli.doctor.agent_learning import Learning
    from seedcli.training.replay.requirements import check_replay

    tf.config.set_visible_devices([], "GPU")
    training = config.training.model_copy(update={"batch_size": COLUMNS * config.training.minibatches})
    cases: list[Case] = []

    def build() -> tuple[Status, str, str]:
        env = create_env_beside_tensorflow(config.environment, 1)
        spec = env.spec
        env.close()
        agent = create_agent(config.agent, training, spec, SEED)
        cases.append(Case(agent, config.agent, training, spec))
        algorithm = agent.algorithm
        # The preset chooses how columns are sampled; conflicts with the agent itself are found with any choice.
        uniform = config.replay.model_copy(update={"sampling": "uniform"})
        check_replay(agent, config.model_copy(update={"replay": uniform}))
        found = f"for {spec.name}: {algorithm.batch_records} records from a {algorithm.source}"
        return "ok", found, _preset_like(algorithm)

    if not judge("build", build):
        return
    case = cases[0]
    checks = {
        "variables": acting.check_variables,
        "initial state": acting.check_initial_state,
        "exploration": acting.check_exploration,
        "actions": acting.check_actions,
        "greedy action": acting.check_greedy_action,
        "recorded fields": acting.check_recorded,
        "state": acting.check_state,
        "purity": acting.check_pure,
        "rows": acting.check_rows,
    }
    needs = {"greedy action": ("initial state", "actions"), "rows": ("initial state", "state")}
    alone = ("variables", "initial state", "exploration")
    passed = {
        name: judge(name, functools.partial(check, case), *() if name in alone else needs.get(name, ("initial state",)))
        for name, check in checks.items()
    }
    if not all(passed[name] for name in ("initial state", "exploration", "actions", "recorded fields", "state")):
        judge("learning", lambda: ("skipped", "needs unrolls that the agent has acted on"))
        return
    plays: list[Played] = []

    def unroll() -> Result:
        plays.append(play(case, np.random.default_rng(1)))
        return acting.check_unroll(case, plays[0])

    judge("unroll", unroll)
    if not plays:
        return
    learning = Learning(case, plays[0])
    judge("observe", learning.observe)
    judge("targets", learning.targets)
    judge("loss", learning.loss, "targets")
    judge("gradients", learning.gradients, "loss")
    judge("final records", learning.final_records, "gradients")
    judge("halves", learning.halves, "gradients")
    judge("initial priorities", learning.initial_priorities)
    judge("updates", learning.updates, "gradients")


def _preset_like(algorithm: AlgorithmSpec) -> str:
    """The general preset whose settings suit the source of an algorithm's batches."""
    if algorithm.source == "queue":
        return "gymnasium_vtrace"
    return "gymnasium_r2d2" if algorithm.sample_length is None else "gymnasium_sac"


def _sentence(error: Exception) -> str:
    """An error as a sentence, with the place in the user's code where it was raised."""
    if isinstance(error, SeedError):
        return str(error)
    ours = Path(seedcli.__file__).parent
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "site-packages" not in frame.filename]
    theirs = [frame for frame in frames if not Path(frame.filename).is_relative_to(ours)]
    place = f" ({Path(theirs[-1].filename).name}:{theirs[-1].lineno})" if theirs else ""
    return first_line(error) + place
