"""What events belong to: one aggregate of one tenant, and the rules for its three names.

Every door through which events go takes an :class:`Aggregate`, so that the tenant cannot be left out.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, field
from functools import lru_cache

from toril.errors import InvalidValue

LONGEST_TENANT = 128
"""Characters in a tenant's name, at most."""

LONGEST_TYPE = 128
"""Characters in an aggregate type, at most."""

LONGEST_ID = 512
"""Bytes of an aggregate id in UTF-8, at most."""

_TYPE = re.compile(rf"[A-Za-z0-9_.\-]{{1,{LONGEST_TYPE}}}")


class Withheld:
    """Stands in an error for a value that no error text may show, such as a tenant's name."""

    def __init__(self, value: object) -> None:
        self._shown = f"{len(value)} characters" if isinstance(value, str) else type(value).__name__

    def __repr__(self) -> str:
        return f"({self._shown}, not shown)"


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One aggregate of one tenant. The tenant is left out of its ``repr``, which may end in an error's text.

    ::

        Aggregate("acme", "trace", "4bf92f3577b34da6a3ce929d0e0e4736")
    """

    tenant: str = field(repr=False)
    """Whose it is: 1 to 128 characters, no ``:``, no control character, no blank at either end."""
    type: str
    """What it is: 1 to 128 letters, digits, ``_``, ``.`` and ``-``."""
    id: str
    """Which one it is: 1 to 512 bytes, not only blanks, no control character. It may contain ``:``."""

    def __post_init__(self) -> None:
        try:
            _check_names(self.tenant, self.type)
        except TypeError:  # no text, and nothing that could be remembered
            _check_names.__wrapped__(self.tenant, self.type)
        check_aggregate_id(self.id)

    @property
    def key(self) -> str:
        """``tenant:type:id``. Only the id, which comes last, may contain ``:``, so it can be taken apart."""
        return f"{self.tenant}:{self.type}:{self.id}"

    @classmethod
    def parse(cls, key: str) -> Aggregate:
        """The aggregate that a :attr:`key` names."""
        parts = key.split(":", 2) if isinstance(key, str) else []
        if len(parts) != 3:
            raise InvalidValue("aggregate key", Withheld(key), "it has three parts, tenant:type:id")
        return cls(*parts)


def check_tenant(tenant: object) -> str:
    """The tenant itself, or an :class:`InvalidValue` that states the rule and does not show the name."""
    problem = _problem(tenant)
    if problem is None:
        assert isinstance(tenant, str)
        if tenant != tenant.strip():
            problem = "it must not begin or end with a blank"
        elif ":" in tenant:
            problem = "it must not contain ':', which separates the parts of a key"
        elif len(tenant) > LONGEST_TENANT:
            problem = f"it has more than {LONGEST_TENANT} characters"
        else:
            return tenant
    raise InvalidValue("tenant", Withheld(tenant), problem)


def check_aggregate_type(name: object) -> str:
    """The aggregate type itself, or an :class:`InvalidValue` that states the rule."""
    if isinstance(name, str) and _TYPE.fullmatch(name):
        return name
    raise InvalidValue(
        "aggregate type", name, f"1 to {LONGEST_TYPE} letters, digits, '_', '.' and '-', like 'trace'"
    )


def check_aggregate_id(ident: object) -> str:
    """The aggregate id itself, or an :class:`InvalidValue` that states the rule."""
    problem = _problem(ident)
    if problem is None:
        assert isinstance(ident, str)
        if not ident.strip():
            problem = "it must not be blank"
        elif len(ident) * 4 > LONGEST_ID and len(ident.encode()) > LONGEST_ID:
            problem = f"it has more than {LONGEST_ID} bytes"
        else:
            return ident
    raise InvalidValue("aggregate id", ident, problem)


@lru_cache(4096)
def _check_names(tenant: object, aggregate_type: object) -> None:
    """Few tenants and types have many aggregates: what was found good once needs no second look."""
    check_tenant(tenant)
    check_aggregate_type(aggregate_type)


def _problem(text: object) -> str | None:
    """What is wrong with text that is to be part of a key; None where nothing is."""
    if not isinstance(text, str):
        return "it must be a string"
    if not text:
        return "it must not be empty"
    if text.isprintable():
        return None
    kinds = {unicodedata.category(letter) for letter in text}
    if "Cc" in kinds:
        return "it must not contain control characters"
    return "it must be text that UTF-8 can encode" if "Cs" in kinds else None
