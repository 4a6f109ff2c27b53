"""The names of an aggregate: what is taken, what is refused, and that no text shows a tenant."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toril import InvalidValue
from toril.aggregate import Aggregate

LONE = "\ud800"
"""Half of a character: Python's strings can hold it, UTF-8 cannot."""

REFUSED: list[tuple[str, tuple[Any, Any, Any]]] = [
    *(
        ("tenant", (tenant, "trace", "1"))
        for tenant in ["", " ", " acme", "acme ", "a:b", "a\nb", "a\0", "\x7f", "a" * 129, LONE, 7, None]
    ),
    *(
        ("aggregate type", ("acme", kind, "1"))
        for kind in ["", " ", "a b", "a:b", "a/b", "a\n", "año", "a" * 129, 7, None]
    ),
    *(
        ("aggregate id", ("acme", "trace", ident))
        for ident in ["", " ", " \t ", "a\nb", "a\0", "a" * 513, "é" * 257, LONE, 7, None]
    ),
]


@pytest.mark.parametrize(("field", "parts"), REFUSED)
def test_a_name_that_breaks_its_rule_is_refused(field: str, parts: tuple[Any, Any, Any]) -> None:
    with pytest.raises(InvalidValue) as caught:
        Aggregate(*parts)
    assert caught.value.field == field
    assert caught.value.rule in str(caught.value)


@pytest.mark.parametrize("tenant", [" acme-corp", "acme-corp:x", "acme-corp\n", "acme-corp" * 20])
def test_tenant_walls_a_refused_tenant_is_not_shown(tenant: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        Aggregate(tenant, "trace", "1")
    assert "acme" not in str(caught.value)
    with pytest.raises(InvalidValue) as caught:
        Aggregate.parse("acme-corp")
    assert "acme" not in str(caught.value)


def test_tenant_walls_an_aggregate_shows_itself_without_its_tenant() -> None:
    assert repr(Aggregate("acme", "trace", "7")) == "Aggregate(type='trace', id='7')"


def test_what_only_looks_bad_is_taken() -> None:
    Aggregate("año nuevo", "lw.obs-span_1", "a:b::{c}")
    Aggregate("t" * 128, "t" * 128, "é" * 256)
    assert Aggregate(" acme".strip(), "trace", " 1 ").id == " 1 "
    assert Aggregate("a\u2028b", "trace", "\u00ad").tenant == "a\u2028b"  # unprintable, no control character


names = st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), min_size=1, max_size=64)


@given(names.map(lambda name: name.replace(":", "").strip()).filter(bool), names.filter(str.strip))
def test_a_key_gives_back_what_it_names(tenant: str, ident: str) -> None:
    made = Aggregate(tenant, "trace", ident)
    assert Aggregate.parse(made.key) == made


@pytest.mark.parametrize("key", ["", "acme", "acme:trace", 7, None, b"acme:trace:1", "acme:trace:", "::"])
def test_what_is_no_key_is_refused(key: Any) -> None:
    with pytest.raises(InvalidValue):
        Aggregate.parse(key)
