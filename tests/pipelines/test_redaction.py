"""What must not be stored is taken out, everywhere, and the rest stays as it is."""

from __future__ import annotations

import base64
import json
import re
import time
from functools import cache
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import SCALE
from toril.pipelines.spans.redaction import (
    API_KEY,
    CARD,
    EMAIL,
    TEXT_RULES,
    RedactRules,
    TextRule,
    is_card_number,
    no_redaction,
)
from toril.pipelines.spans.span import Ai, Link, Resource, Scope, Span, SpanEvent

MAIL, GONE = "ada.l+x@mail.example.org", "[redacted:email]"
redact = RedactRules()


def span(**fields: Any) -> Span:
    # Ids of digits that could be the numbers of cards.
    ids = {"trace_id": "4111111111111111" * 2, "span_id": "4111111111111111"}
    return Span(**{**ids, "name": "n", "kind": 1, "start": 4111111111111111, "end": 2, "status": 0, **fields})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"write to {MAIL}, please", f"write to {GONE}, please"),
        (f"<{MAIL}>;jürgen@müller.de.", f"<{GONE}>;{GONE}."),
        ("@here is no address, nor is a@b, nor 5@5.5", None),
        ("4111 1111 1111 1111 until 12/27", "[redacted:card] until 12/27"),
        ("card 5 5555-5555-5555-4444", "card 5 [redacted:card]"),
        ("378282246310005, 3782 822463 10005", "[redacted:card], [redacted:card]"),
        ("6011111111111117 and 30569309025904", "[redacted:card] and [redacted:card]"),
        ("4111111111111112 has another check digit", None),
        ("1700000000000000000 is a time, 0.4111111111111111 a fraction", None),
        ("id a4111111111111111, 41111111111111111111, 4111-1111 1111-1111", None),
        ("key sk-proj-Ab_3-456789abcdefghij.", "key [redacted:api-key]."),
        ("sk-ant-api03-abcdefghijklmnop", "[redacted:api-key]"),
        ("task-12345678901234567890 and sk-folding-cube-animation", None),
        ("AKIAIOSFODNN7EXAMPLE", "[redacted:api-key]"),
        ("token=ghp_abcdefghijklmnopqrstuvwxyz0123456789", "token=[redacted:api-key]"),
        ("github_pat_11ABCDEFG0abcdefghijklm", "[redacted:api-key]"),
        ("sk_live_abcdefghijklmnop glpat-abcdefghijklmnopqrst", "[redacted:api-key] [redacted:api-key]"),
        ("xoxb-1234567890-abcdef hf_abcdefghijklmnopqrstuv", "[redacted:api-key] [redacted:api-key]"),
        ("AIzaSyA1234567890abcdefghijklmnopqrstuv", "[redacted:api-key]"),
        ("Authorization: Bearer abc.def-ghi_jkl~mno+/==", "Authorization: [redacted:token]"),
        ("BASIC dXNlcjpwYXNzd29yZA==", "[redacted:token]"),
        ("the bearer of bad news has basic manners", None),
        ("jwt eyJhbGciOiJI.eyJzdWIiOiIx.SflKxwRJSM-_x end", "jwt [redacted:jwt] end"),
        (
            "a -----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY----- b",
            "a [redacted:private-key] b",
        ),
        ("-----BEGIN PRIVATE KEY-----\nMIIE, cut off", "[redacted:private-key]"),
        ("-----BEGIN PUBLIC KEY-----\nMIIE\n-----END PUBLIC KEY-----", None),
    ],
)
def test_texts(text: str, expected: str | None) -> None:
    assert redact.text(text) == (text if expected is None else expected)


@pytest.mark.parametrize(
    "name",
    [
        "http.request.header.authorization",
        "api_key",
        "x-api-key",
        "openai.apiKey",
        "APIKey",
        "db.password",
        "PASSWORD",
        "client_secret",
        "Set-Cookie",
        "refreshToken",
    ],
)
def test_telling_names(name: str) -> None:
    for value in ("hunter2", 0, False, ["a"], {"a": 1}):
        made = redact("t", span(attributes={name: value, "other": value}))
        assert re.fullmatch(r"\[redacted:[a-z-]+\]", made.attributes[name])
        assert made.attributes["other"] == value


@pytest.mark.parametrize(
    "name", ["secretary", "gen_ai.usage.input_tokens", "cookies", "key", "passwords.count"]
)
def test_names_that_tell_nothing(name: str) -> None:
    made = span(attributes={name: "x"})
    assert redact("t", made) is made


def filled(mail: str) -> Span:
    """A span with this in every text."""
    values = {"a": mail, "list": [mail, {"deep": [mail, 1, None, True, 0.5]}], mail: 1}
    return span(
        name=mail,
        trace_state=mail,
        status_message=mail,
        attributes=values,
        events=[SpanEvent(name=mail, time=3, attributes=values, dropped_attributes=2)],
        links=[Link(trace_id="a" * 32, span_id="b" * 16, trace_state=mail, attributes=values)],
        resource=Resource(attributes=values, schema_url=mail),
        scope=Scope(name=mail, version=mail, attributes=values, schema_url=mail),
        rules=["rule"],
        ai=Ai(
            kind="llm",
            operation=mail,
            provider=mail,
            request_model=mail,
            response_model=mail,
            input=[{"role": "user", "content": mail}],
            output={"text": mail},
            input_tokens=0,
            tool=mail,
            agent=mail,
            conversation=mail,
            user=mail,
            customer=mail,
            labels=[mail],
            cost=0,
            cost_from="span",
        ),
    )


def test_every_text_of_a_span() -> None:
    before = filled(MAIL)
    assert redact("t", before) == filled(GONE)
    assert before == filled(MAIL)
    assert MAIL.encode() not in msgspec.json.encode(redact("t", before))


def test_every_text_of_a_span_was_filled() -> None:
    """So that a field that is added to a span is thought of here."""
    full = filled(MAIL)
    assert full.ai is not None
    for part in (full, full.events[0], full.links[0], full.resource, full.scope, full.ai):
        left = {field.name: field.type for field in msgspec.structs.fields(part)}
        for name in msgspec.to_builtins(part):
            del left[name]
        left.pop("parent_span_id", None)
        assert set(left.values()) <= {int, int | None, bool | None}, left


SECRETS = [
    *(
        MAIL,
        "4111111111111111",
        "4111 1111 1111 1111",
        "sk-proj-abcdefgh12345678",
        "rk_live_abcdefghijklmnop",
    ),
    *("AKIAIOSFODNN7EXAMPLE", "Bearer abcdefgh/ijklmnopqrs", "eyJhbGciOiJI.eyJzdWIiOiIx.x"),
    *("-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----", "-----BEGIN PRIVATE KEY-----\nMIIE"),
]


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("around", ["\n", "\t", "\b", '"', "\\", "—", "🙂", " ", "/"])
def test_secrets_in_json_that_is_text(secret: str, around: str) -> None:
    """Nothing hides behind an escape, and what is left is JSON."""
    document: Any = [{"content": f"a{around}{secret}{around}", "after": 1}]
    for text in (
        json.dumps(document),
        json.dumps(document, ensure_ascii=False),
        json.dumps(document).replace("/", r"\/"),
        json.dumps([json.dumps(document)]),
    ):
        made = redact.text(text)
        assert json.loads(made)
        body = secret.removeprefix("-----BEGIN PRIVATE KEY-----\n").removeprefix("Bearer ")
        assert body[1:8] not in made


def test_numbers_of_cards_that_are_numbers() -> None:
    made = redact("t", span(attributes={"a": 4111111111111111, "b": 1_700_000_000_000_000_000, "c": 0}))
    assert made.attributes == {"a": "[redacted:card]", "b": 1_700_000_000_000_000_000, "c": 0}
    assert (made.start, made.span_id) == (4111111111111111, "4111111111111111")


def test_bytes_that_are_text() -> None:
    def marked(content: bytes) -> dict[str, str]:
        return {"$bytes": base64.b64encode(content).decode()}

    picture = marked(b"\xff\xd8" + MAIL.encode())
    made = redact("t", span(attributes={"text": marked(MAIL.encode()), "picture": picture}))
    assert made.attributes == {"text": marked(GONE.encode()), "picture": picture}


def test_names_that_become_the_same_keep_their_values() -> None:
    made = redact("t", span(attributes={"a@example.org": 1, "b@example.org": 2, "c": 3}))
    assert made.attributes == {GONE: 1, f"{GONE}'": 2, "c": 3}


def test_a_span_without_anything_to_hide_is_the_same() -> None:
    made = span(attributes={"a": "nothing", "b": [1, {"c": None}], "zero": 0}, ai=Ai(input="hello"))
    assert redact("t", made) is made
    assert no_redaction("t", made) is made


def test_rules_of_ones_own() -> None:
    badge = TextRule(name="badge", pattern=re.compile(r"#\d{4}\b"), hint="#")
    own = RedactRules(texts=[badge], names=["shoe size"])
    made = own("t", span(attributes={"a": f"#1234 {MAIL}", "shoeSize": 41, "password": "x"}))
    assert made.attributes == {
        "a": f"[redacted:badge] {MAIL}",
        "shoeSize": "[redacted:shoe-size]",
        "password": "x",
    }
    assert RedactRules(texts=(), names=())("t", made) is made


def test_a_text_that_does_not_come_to_rest_is_taken_out_whole() -> None:
    restless = TextRule(name="x", pattern=re.compile(r"redacted"), hint="redacted")
    assert RedactRules(texts=[restless]).text("redacted") == "[redacted:text]"


pieces = st.sampled_from(
    [
        *(
            MAIL,
            "a@",
            "@b.cc",
            "4111111111111111",
            "4111 1111 1111 ",
            "378282246310005",
            "5555-5555-5555-4444",
        ),
        *("sk-", "sk-proj-abcdefgh12345678", "AKIAIOSFODNN7EXAMPLE", "ghp_", "a" * 20, "0" * 20),
        *("Bearer ", "basic ", "eyJhbGciOiJI.eyJzdWIiOiIx.", "eyJ", "-----BEGIN PRIVATE KEY-----"),
        *(
            "-----END PRIVATE KEY-----",
            "[redacted:email]",
            ".",
            "-",
            "_",
            " ",
            "\n",
            "1",
            "x",
            "xoxb-",
            "hf_",
        ),
    ]
)
mixtures = st.lists(pieces | st.text(max_size=3), max_size=10).map("".join)
names = st.sampled_from(["a", "b", "password", "apiKey", MAIL, "x@y.zz", GONE, "$bytes"]) | mixtures
values = st.recursive(
    mixtures | st.integers(0, 10**19) | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.promise
@settings(max_examples=int(80 * SCALE))
@given(mixtures, st.dictionaries(names, values, max_size=4))
def test_redacting_twice_is_redacting_once(text: str, attributes: dict[str, Any]) -> None:
    once = redact("t", span(name=text, attributes=attributes))
    assert redact("t", once) == once


@pytest.mark.promise
@settings(max_examples=int(200 * SCALE))
@given(mixtures)
def test_nothing_is_found_without_its_hint_or_left_in_the_end(text: str) -> None:
    for rule in TEXT_RULES:
        if rule.pattern.search(text):
            assert re.search(rule.hint, text), rule.name
    made = redact.text(text)
    for rule in TEXT_RULES:
        assert rule.redact(made) == made


@given(st.integers(0, 10**15 - 1))
def test_check_digits(number: int) -> None:
    assert sum(is_card_number(f"{number}{digit}") for digit in range(10)) == 1


HOSTILE = {
    "letters": "a",
    "ats": "@",
    "addresses": "a@bb.cc ",
    "almost addresses": "a@b.",
    "domains": "b.",
    "digits": "4",
    "groups": "4111 ",
    "cards": "4111111111111111 ",
    "almost cards": "4111111111111112 ",
    "keys": "sk-1",
    "almost keys": " sk-a",
    "begins": "-----BEGIN PRIVATE KEY-----",
    "almost begins": "-----BEGIN ",
    "quoted begins": '-----BEGIN PRIVATE KEY-----"',
    "backslashes": "\\",
    "escapes": r"\na\u0041",
    "ends": "-----END ",
    "almost tokens": "eyJaaaaaaaa.",
    "bearers": "Bearer ",
    "tokens": "Bearer aaaaaaaaaaaaaaaaa ",
    "words and cards": "AKIAIOSFODNN7EXAMPLE4111111111111111",
}


@pytest.mark.parametrize("unit", HOSTILE.values(), ids=HOSTILE)
def test_hostile_texts_take_linear_time(unit: str) -> None:
    """A text of a megabyte takes at most a fixed number of times what one of ordinary words takes.

    They take up to 5 times that; what takes quadratic time here takes minutes to hours.
    """
    assert cost(unit) < 25 * max(cost("the quick brown fox jumps over it. "), 0.01)


@cache
def cost(unit: str) -> float:
    """Seconds of work for a megabyte of this, after something for each rule to look at."""
    text = f"{MAIL} sk-1234567890123456 4111111111111111 Bearer eyJ -----BEGIN "
    text += unit * (1_000_000 // len(unit))
    began = time.thread_time()
    redact.text(text)
    return time.thread_time() - began


def test_the_rules_are_named() -> None:
    assert [rule.name for rule in TEXT_RULES] == ["private-key", "jwt", "api-key", "token", "email", "card"]
    assert {API_KEY, EMAIL, CARD} <= set(TEXT_RULES)
