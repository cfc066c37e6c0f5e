"""Describes pydantic's validation errors: the rule that a value breaks, in words."""

from __future__ import annotations

from typing import Any

_RULES = {
    "missing": "is missing",
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "literal_error": "must be one of {expected}",
    "multiple_of": "must be a multiple of {multiple_of}",
    "finite_number": "must be a finite number",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "int_parsing_size": "must be a smaller whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "string_too_short": "must not be empty",
    "string_too_long": "must have at most {max_length} characters",
    "too_short": "must hold at least {min_length}",
    "too_long": "must hold at most {max_length}",
    "tuple_type": "must be a list, such as [64, 64]",
    "dict_type": "must be a table, such as {{ name = 1 }}",
}


def broken_rule(fault: Any) -> str:
    """The rule that a value breaks, such as "must be at least 1"; the caller writes the name in front.

    Args:
        fault: one item of `pydantic.ValidationError.errors()`.
    """
    context = fault.get("ctx", {})
    if fault["type"] == "value_error":
        return str(context["error"])
    rule = _RULES.get(fault["type"])
    # pydantic's own message may quote the value, which may hold braces, so it is not formatted.
    return rule.format(**context) if rule else f"{fault['msg'][:1].lower()}{fault['msg'][1:]}"
