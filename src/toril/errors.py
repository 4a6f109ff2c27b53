"""The root of every error Toril raises, and the one for bad input."""

from __future__ import annotations


class TorilError(Exception):
    """Anything Toril itself refuses, cannot do, or cannot vouch for."""


class InvalidValue(TorilError, ValueError):
    """Input that breaks a rule. Nothing was changed.

    The message names the field, the value and the rule, so that it can be shown to whoever typed it.
    """

    def __init__(self, field: str, value: object, rule: str) -> None:
        self.field = field
        self.value = value
        self.rule = rule
        shown = repr(value)
        if len(shown) > 200:
            shown = shown[:197] + "..."
        super().__init__(f"{field} {shown} is not valid: {rule}")
