"""A complete configuration: its sections, and the check for conflicts between their values."""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from seedcli.config.conflicts import conflicts
from seedcli.config.sections import Sections


class Config(Sections):
    """A complete, validated configuration.

    Raises:
        ValueError: values that are each in range conflict; one sentence that names their keys.
    """

    @model_validator(mode="after")
    def _check_that_values_agree(self) -> Self:
        for conflict in conflicts(self):
            raise ValueError(conflict)
        return self
