"""Diagnosis of training problems from the algorithm's own metrics: at most one warning at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from seedcli.config.toml_text import format_value

if TYPE_CHECKING:
    from seedcli.agents.base import Symptom

# Duration for which a symptom must be present before it is reported, and absent before it is cleared.
_SPAN = 0.05  # share of the run's environment steps
_LINES = 3
_UPDATES = 200


class _Case:
    """State of one symptom; it changes only after a whole span of lines that agree."""

    def __init__(self, symptom: Symptom, total_steps: int) -> None:
        self.symptom = symptom
        self.present = False
        self.said = False
        self.value = 0.0  # the last value that showed the symptom
        self._patience = symptom.patience * total_steps
        self._span = _SPAN * total_steps
        self._lines = 0  # consecutive lines that contradict `present`
        self._first = (0, 0)  # environment steps and updates of the first of these

    def update(self, env_steps: int, updates: int, value: float | None) -> None:
        if value is None or env_steps < self._patience:
            return
        shows = self.symptom.shows(value)
        if shows:
            self.value = value
        if shows == self.present:
            self._lines = 0
            return
        if not self._lines:
            self._first = (env_steps, updates)
        self._lines += 1
        steps, first_update = self._first
        enough = self._lines >= _LINES and updates - first_update >= _UPDATES
        if enough and env_steps - steps >= self._span:
            self.present, self.said, self._lines = shows, False, 0


class Diagnosis:
    """Detects the symptoms that an algorithm declares.

    A symptom is present once all lines of metrics have shown it over 5 % of the run, at least 3 lines and 200 updates.
    It is cleared once no line has shown it for as long. If several are present, the first declared is reported. The
    state is not stored in checkpoints.

    Args:
        symptoms: from `agents.base.AlgorithmSpec`.
        total_steps: environment steps of the run.
        values: the configuration: section → name → JSON value; tables are nested.

    Attributes:
        warning: the current warning; "": none.
    """

    def __init__(self, symptoms: Sequence[Symptom], total_steps: int, values: Mapping[str, Mapping[str, Any]]) -> None:
        self._cases = [_Case(symptom, total_steps) for symptom in symptoms]
        self._values = values
        self.warning = ""

    def update(self, env_steps: int, updates: int, metrics: Mapping[str, float]) -> str:
        """Process a line of metrics; `metrics` is empty if no update was made.

        Returns:
            A new warning to log, also one that returns after it was cleared; "" otherwise.
        """
        for case in self._cases:
            case.update(env_steps, updates, metrics.get(case.symptom.metric))
        current = next((case for case in self._cases if case.present), None)
        self.warning = "" if current is None else self._sentence(current)
        if current is None or current.said:
            return ""
        current.said = True
        return self.warning

    def _sentence(self, case: _Case) -> str:
        symptom = case.symptom
        settings = ", ".join(f"{key} ({self._value(key)})" for key in symptom.settings)
        return f"{symptom.sentence.format(case.value)} ({symptom.rule}): look at {settings}"

    def _value(self, key: str) -> str:
        value: Any = self._values
        for name in key.split("."):
            value = value[name]
        return format_value(value)
