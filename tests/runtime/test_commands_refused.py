"""Commands that cannot be: dispatchers and ids that are refused, and why."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.runtime.commanding import PIPELINE, TYPE
from tests.runtime.probes import Note, Probe
from toril import InvalidValue
from toril.events import AnyNewEvent, Command, CommandHandler, ConfigurationError, ValidationError
from toril.queue import Backoff
from toril.queue.options import check_job_id
from toril.runtime.commands import CommandDispatcher, CommandOptions
from toril.runtime.job_ids import job_id_of, read_job_id
from toril.stores import MemoryEventStore


def made(handler: Any, **more: Any) -> CommandDispatcher[Any]:
    given_: dict[str, Any] = {"pipeline": PIPELINE, "aggregate_type": TYPE, "store": MemoryEventStore()}
    return CommandDispatcher(handler, **(given_ | more))


async def test_a_dispatcher_that_cannot_work_is_refused(probe: Probe) -> None:
    class Needy(CommandHandler[Note]):
        def __init__(self, what: str) -> None: ...

        @classmethod
        def get_aggregate_id(cls, payload: Note) -> str:
            return payload.key

        def handle(self, command: Command[Note]) -> list[AnyNewEvent]:  # noqa: ARG002
            return []

    with pytest.raises(ConfigurationError, match="Needy must be made without arguments"):
        made(Needy)
    with pytest.raises(ConfigurationError, match="extends CommandHandler"):
        made(Note)
    with pytest.raises(InvalidValue, match="queue name"):
        made(probe.command(), pipeline="a:b")
    with pytest.raises(InvalidValue, match="max_wait 10 .*less than the delay"):
        made(probe.command(wait=100), options=CommandOptions(max_wait=10))
    assert made(probe.command(wait=100)).max_wait == 1000
    wrong: dict[str, Any]
    for wrong in ({"attempts": 0}, {"backoff": 5}, {"backoff": Backoff("own", 1)}, {"max_wait": -1}):
        with pytest.raises(InvalidValue):
            CommandOptions(**wrong)


@pytest.mark.parametrize(
    ("key", "rule"),
    [
        ("", "not blank"),
        ("  ", "not blank"),
        (17, "must return text"),
        ("a\nb", "printable"),
        ("\ud800", "printable"),
        ("x" * 513, "more than 512 bytes"),
    ],
)
def test_an_id_that_is_refused_says_why(key: Any, rule: str) -> None:
    with pytest.raises(ValidationError, match=rule) as refused:
        job_id_of("acme", key)
    assert refused.value.field == "job id"
    assert refused.value.value == key
    assert "acme" not in str(refused.value), "no error names a tenant"


def test_ids_can_be_read() -> None:
    assert job_id_of("acme", "trace-123") == "acme/trace-123"
    assert job_id_of("acme", "acme:trace-123") == "acme/acme%3Atrace-123"
    assert job_id_of("acme", "17") == "acme/17"
    assert job_id_of("a/b", "c/d~2%") == "a%2Fb/c/d%7E2%25"
    assert read_job_id("acme/trace-123~2") == ("acme", "trace-123")
    with pytest.raises(ValidationError, match="two parts"):
        read_job_id("17")


printable = st.characters(exclude_categories=["C", "Z"], include_characters=" ")
texts = st.text(printable, min_size=1, max_size=30).filter(lambda text: bool(text.strip()))
tenants = texts.map(lambda text: text.replace(":", ";").strip())


@given(tenants, texts, tenants, texts)
def test_an_id_is_valid_and_belongs_to_one_tenant_and_key(
    tenant: str, key: str, other: str, other_key: str
) -> None:
    job_id = job_id_of(tenant, key)
    check_job_id(job_id)
    assert ":" not in job_id
    assert read_job_id(job_id) == (tenant, key)
    assert read_job_id(f"{job_id}~2") == (tenant, key)
    assert (job_id == job_id_of(other, other_key)) == ((tenant, key) == (other, other_key))
