"""What must not be stored is taken out of a span before anything of it is.

Every span passes through one :data:`Redactor` (a tenant and a span in, a span out). One that fails, fails its
span: who calls it must never store what was to be redacted, so an error means that the span is refused.

:class:`RedactRules` is the one that comes along. It looks at every text of a span except its ids. It is a net
with meshes: secrets that look like nothing in particular go through, unless they have a telling name.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from operator import is_not
from typing import Any, TypeVar

import msgspec

from toril.pipelines.spans.span import Span

Redactor = Callable[[str, Span], Span]
"""Of a tenant and a span, the span as it may be stored. Twice is the same as once."""

S = TypeVar("S", bound=msgspec.Struct)


def no_redaction(tenant: str, span: Span) -> Span:  # noqa: ARG001
    """Everything may be stored."""
    return span


class TextRule(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is taken out of texts. In its place is ``[redacted:<name>]``.

    The pattern must take time linear in the text, whatever the text: start where something starts (a look
    behind for what cannot come before), and repeat only what cannot be split in two ways.
    """

    name: str
    pattern: re.Pattern[str]
    hint: str
    """A pattern without which it is not in a text, and which is found sooner: made of alternatives that each
    begin with a plain character, and a rare one, it is sought ten times faster."""
    check: Callable[[str], bool] | None = None
    """Whether what was found is what was sought."""

    def redact(self, text: str) -> str:
        """The text without it."""
        return self.pattern.sub(self._replaced, text)

    def _replaced(self, found: re.Match[str]) -> str:
        if self.check is not None and not self.check(found[0]):
            return found[0]
        return f"[redacted:{self.name}]"


def is_card_number(text: str) -> bool:
    """Whether its digits have the check digit of a payment card (Luhn)."""
    digits = [int(digit) for digit in reversed(text) if digit.isdigit()]
    doubled = (2 * digit - 9 if digit > 4 else 2 * digit for digit in digits[1::2])
    return (sum(digits[::2]) + sum(doubled)) % 10 == 0


def _start(before: str) -> str:
    r"""Where something can start: not after one of these characters, but after an escape of JSON.

    Much text is JSON as text. What follows the two characters ``\n`` there follows no letter.
    """
    return rf"(?:(?<!{before})|(?<=\\[nrtbf])|(?<=\\u[0-9a-fA-F]{{4}}))"


EMAIL = TextRule(
    name="email",
    # The first letter is not that of an escape.
    pattern=re.compile(
        _start(r"[\w.%+-]")
        + r"(?!(?<=\\)(?:[nrtbf]|u[0-9a-fA-F]{4}))[\w.%+-]++@(?:[^\W_][\w-]*+\.)+[^\W\d_]{2,}+"
    ),
    hint="@",
)
PRIVATE_KEY = TextRule(
    name="private-key",
    # One that was cut off goes to the end of the text, or of the text in JSON.
    pattern=re.compile(
        r"-----BEGIN[ \w]{0,40}PRIVATE KEY[ \w]{0,40}-----"
        r"[^\"]*?(?:-----END[ \w]{0,80}-----|(?=\\{0,9}\")|\Z)"
    ),
    hint="-----BEGIN",
)
JWT = TextRule(
    name="jwt",
    pattern=re.compile(_start(r"[\w-]") + r"eyJ[\w-]{5,}+\.[\w-]{5,}+\.[\w-]*+"),
    hint="J(?<=eyJ)",
)
API_KEY = TextRule(
    name="api-key",
    pattern=re.compile(
        _start(r"[\w-]") + r"(?:"
        r"sk-(?=[A-Za-z_-]*+\d)[\w-]{16,}+"  # OpenAI, Anthropic, LangWatch …
        r"|[rs]k_(?:live|test)_\w{10,}+"
        r"|(?:AKIA|ASIA)[0-9A-Z]{16}(?![\w-])"
        r"|gh[pousr]_\w{20,}+|github_pat_\w{20,}+|glpat-[\w-]{16,}+"
        r"|xox[abeoprs]-[\w-]{10,}+|AIza[\w-]{30,}+|hf_\w{20,}+"
        r")"
    ),
    hint=(
        r"-(?<=sk-)|_(?<=[rs]k_)|AKIA|ASIA|_(?<=gh[pousr]_)|_(?<=github_pat_)|-(?<=glpat-)"
        r"|-(?<=xox[abeoprs]-)|AIza|_(?<=hf_)"
    ),
)
TOKEN = TextRule(
    name="token",
    pattern=re.compile(
        _start(r"\w") + r"(?:[Bb]earer|BEARER|[Bb]asic|BASIC) {1,8}+(?:[\w.~+/-]|\\/){16,}+=*+"
    ),
    hint="B(?=earer |EARER |asic |ASIC )|b(?=earer |asic )",
)
CARD = TextRule(
    name="card",
    # What a card begins with and how its digits are grouped; times and ids in digits are not like that.
    pattern=re.compile(
        r"[2-6](?:(?<![\w.].)|(?<=\\[nrtbf].)|(?<=\\u[0-9a-fA-F]{4}.))(?:"
        r"(?<=4)\d{3}([ -]?)\d{4}\1\d{4}\1\d{4}(?:\1\d{3})?"
        r"|(?<=4)\d{12}"
        r"|(?:(?<=5)[1-5]|(?<=2)[2-7]|(?<=3)5|(?<=6)[0245])\d{2}([ -]?)\d{4}\2\d{4}\2\d{4}"
        r"|(?<=3)[47]\d{2}([ -]?)\d{6}\3\d{5}"
        r"|(?<=3)[068]\d{2}([ -]?)\d{6}\4\d{4}"
        r")(?!\w)",
        re.ASCII,
    ),
    hint="|".join(rf"{digit}[0-9]{{3}}[ -]?[0-9]{{4}}" for digit in "23456"),
    check=is_card_number,
)
TEXT_RULES = (PRIVATE_KEY, JWT, API_KEY, TOKEN, EMAIL, CARD)

SECRET_NAMES = (
    "access key",
    "access token",
    "api key",
    "apikey",
    "auth token",
    "authorization",
    "client secret",
    "cookie",
    "credential",
    "credentials",
    "id token",
    "passphrase",
    "passwd",
    "password",
    "private key",
    "refresh token",
    "secret",
    "session token",
)
"""In words: ``api key`` is ``api_key``, ``x-api-key``, ``apiKey`` and ``http.request.header.api-key``."""

MOST_PASSES = 8
NOT_TEXT = frozenset({"trace_id", "span_id", "parent_span_id", "kind", "rules"})
"""Fields of a span and its parts that are no one's words."""
_redacted = re.compile(r"\[redacted:[^\]]*\]")
_word = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+")


class RedactRules:
    """A :data:`Redactor`: takes what rules find out of texts, and the values of telling names out whole.

    The names of attributes are texts too. Where nothing is found, the span itself comes back.
    """

    def __init__(
        self, *, texts: Iterable[TextRule] = TEXT_RULES, names: Iterable[str] = SECRET_NAMES
    ) -> None:
        self.texts = tuple(texts)
        self.names = tuple(names)
        self._any_hint = re.compile("|".join(rule.hint for rule in self.texts) or "(?!)")
        self._hinted = [(re.compile(rule.hint), rule) for rule in self.texts]
        self._known_name = lru_cache(maxsize=4096)(self._name)

    def __call__(self, tenant: str, span: Span) -> Span:  # noqa: ARG002 - the same for all
        return self._struct(span)

    def text(self, text: str) -> str:
        """A text without what the rules find.

        What one takes out can bring to light what another looks for, so this goes on until none finds
        anything. A text that does not come to rest is taken out whole.
        """
        if not self._any_hint.search(text):
            return text
        made = text
        for _ in range(MOST_PASSES):
            before = made
            for hint, rule in self._hinted:
                if hint.search(made):
                    made = rule.redact(made)
            if made == before:
                return text if made == text else made
        return "[redacted:text]"

    def value(self, value: Any) -> Any:
        """Any value; the same one where nothing is to be taken out."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return self._bytes(value) if value.keys() == {"$bytes"} else self._object(value)
        if isinstance(value, list):
            made = [self.value(one) for one in value]
            return made if any(map(is_not, made, value)) else value
        if isinstance(value, msgspec.Struct):
            return self._struct(value)
        if type(value) is int and value > 10**11:  # a number of a card may come as a number
            text = str(value)
            return value if (redacted := self.text(text)) is text else redacted
        return value

    def _struct(self, struct: S) -> S:
        changes = {}
        for field in struct.__struct_fields__:
            value = getattr(struct, field)
            if not value or field in NOT_TEXT or isinstance(value, int):
                continue
            made = self.value(value)
            if made is not value:
                changes[field] = made
        return msgspec.structs.replace(struct, **changes) if changes else struct

    def _object(self, value: dict[str, Any]) -> dict[str, Any]:
        made: dict[str, Any] = {}
        changed = False
        for name, content in value.items():
            shown, secret = self._known_name(name) if len(name) < 200 else self._name(name)
            redacted = self.value(content) if secret is None or content is None else secret
            while shown in made:  # two that differed in what was taken out
                shown += "'"
            made[shown] = redacted
            changed = changed or redacted is not content or shown != name
        return made if changed else value

    def _bytes(self, value: dict[str, Any]) -> dict[str, Any]:
        """Bytes that are a text; others are left as they are."""
        try:
            text = base64.b64decode(value["$bytes"], validate=True).decode()
        except (TypeError, ValueError):
            return value
        redacted = self.text(text)
        return value if redacted is text else {"$bytes": base64.b64encode(redacted.encode()).decode()}

    def _name(self, name: str) -> tuple[str, str | None]:
        """A name as it may be stored, and what is stored for its value where that is secret."""
        shown = self.text(name)
        words = _words(name) + _words(shown)
        found = next((secret for secret in self.names if f" {secret} " in words), None)
        return shown, found and f"[redacted:{found.replace(' ', '-')}]"


def _words(name: str) -> str:
    """The words of a name, each between spaces; those that stand for something redacted are none."""
    return f" {' '.join(_word.findall(_redacted.sub(' ', name))).lower()} "
