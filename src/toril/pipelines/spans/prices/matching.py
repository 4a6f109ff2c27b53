"""The names under which a model's price may stand in a table, from the most to the least exact.

Each step looks at the name once, from one of its ends: no name takes long, however it is made.
"""

from __future__ import annotations

LONGEST_NAME = 256
"""A longer name is of no model."""

_REGIONS = frozenset({"us", "us-gov", "eu", "apac", "ap", "au", "jp", "ca", "sa", "global"})
_VENDORS = frozenset(
    {"anthropic", "amazon", "meta", "mistral", "cohere", "ai21", "deepseek", "openai", "qwen", "google"}
)
_STAGES = frozenset({"latest", "preview", "exp", "experimental", "default"})
_DATES = ((4, 2, 2), (2, 4), (2, 2), (8,), (4,), (3,))
"""Numbers at the end of a name, by their digits: 2024-08-06, 08-2024, 08-06, 20240806, 0806, 001."""


def canonical(name: str) -> str:
    """A name in the one form in which names are compared: ``Claude-3.5-Sonnet`` as ``claude-3-5-sonnet``."""
    return name.strip().lower().replace(".", "-")


def candidates(model: str) -> list[str]:
    """The canonical names to look for, in order, each once.

    As it is; without what stands before the last slashes (``openrouter/openai/gpt-4o``); without Bedrock's
    region, vendor and revision (``us.anthropic.claude-…-v1:0``); without a date or stage at the end
    (``-2024-08-06``, ``@20240620``, ``-preview``).
    """
    if not 0 < len(model) <= LONGEST_NAME:
        return []
    whole = model.strip().lower()
    within = whole.split("/")
    last = within[-1]
    bedrock = _without_bedrock(last)
    found = [
        whole,
        "/".join(within[-2:]),
        last,
        *bedrock,
        *_without_dates(last),
        *_without_dates(bedrock[-1]),
    ]
    return list(dict.fromkeys(canonical(name) for name in found if name))


def _without_bedrock(name: str) -> list[str]:
    """The name without region and vendor, then without ``:0`` too, and then without ``-v1``."""
    for first in (_REGIONS, _VENDORS):
        head, dot, rest = name.partition(".")
        if dot and head in first:
            name = rest
    found = [name]
    head, colon, revision = name.rpartition(":")
    if colon and revision.isdigit():
        found.append(name := head)
    head, dash, last = name.rpartition("-")
    if dash and last[:1] == "v" and last[1:].isdigit():
        found.append(head)
    return found


def _without_dates(name: str) -> list[str]:
    """The name with one part less at its end, and one less again, as long as they are dates or stages."""
    found = []
    head, at, _ = name.partition("@")
    if at:
        name = head
        found.append(name)
    while shorter := _shorter(name):
        name = shorter
        found.append(name)
    return found


def _shorter(name: str) -> str | None:
    parts = name.split("-")
    if parts[-1] in _STAGES:
        return "-".join(parts[:-1])
    for digits in _DATES:
        last = parts[-len(digits) :]
        if len(parts) > len(digits) and all(map(_is_digits, last, digits)):
            return "-".join(parts[: -len(digits)])
    return None


def _is_digits(part: str, how_many: int) -> bool:
    return len(part) == how_many and part.isascii() and part.isdigit()
