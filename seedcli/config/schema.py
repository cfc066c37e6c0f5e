"""A whole configuration: its sections, and the check that their values can stand together."""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from seedcli.config.conflicts import conflicts
from seedcli.config.sections import Sections


class Config(Sections):
    """A whole configuration, checked.

    Raises:
        ValueError: values that are each in range cannot stand together; in one sentence, with their keys.
    """

    @model_validator(mode="after")
    def _check_that_values_agree(self) -> Self:
        for conflict in conflicts(self):
            raise ValueError(conflict)
        return self
