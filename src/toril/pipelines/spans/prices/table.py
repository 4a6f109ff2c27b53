"""A table of prices: what a million tokens of a model cost, in whole nano-USD."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Self

import msgspec

from toril.errors import InvalidValue
from toril.pipelines.spans.prices.matching import LONGEST_NAME, candidates, canonical

UNIT = "nano-USD per million tokens"

MILLION = 1_000_000

LARGEST = 10**15
"""A million dollars for a million tokens."""

REMEMBERED = 4096
"""For how many names of models the answer is remembered. Names come from outside."""


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """Nano-USD for a million tokens. What is not said of a cache costs what input does."""

    input: int
    output: int
    cache_read: int | None = None
    cache_write: int | None = None

    def cost(
        self,
        input_tokens: int | None,
        output_tokens: int | None,
        cache_read_tokens: int | None = None,
        cache_write_tokens: int | None = None,
    ) -> int | None:
        """Nano-USD, rounded once: to the nearest, of two to the even one. None where no tokens are known.

        Tokens that were read from a cache or written to it are among the input tokens, and cost their own
        price instead of that of input.
        """
        counts = (input_tokens, output_tokens, cache_read_tokens, cache_write_tokens)
        if (input_tokens is None and output_tokens is None) or any(n is not None and n < 0 for n in counts):
            return None
        asked, answered, read, written = (n or 0 for n in counts)
        exact = (
            max(0, asked - read - written) * self.input
            + answered * self.output
            + read * (self.input if self.cache_read is None else self.cache_read)
            + written * (self.input if self.cache_write is None else self.cache_write)
        )
        whole, rest = divmod(exact, MILLION)
        return whole + (rest * 2 > MILLION or (rest * 2 == MILLION and whole % 2))


class PriceTable:
    """Prices by model, with a version that says which they were."""

    def __init__(
        self, version: str, prices: Mapping[str, Price], providers: Mapping[str, str] | None = None
    ) -> None:
        self.version = version
        """What a span's ``cost_from`` says."""
        self._prices = {canonical(name): price for name, price in prices.items()}
        self._providers = {canonical(name): canonical(made) for name, made in (providers or {}).items()}
        self._remembered = lru_cache(REMEMBERED)(self._find)

    def __len__(self) -> int:
        return len(self._prices)

    def price(self, model: str, provider: str | None = None) -> Price | None:
        """What a model costs; None where that is not known.

        A price under ``provider/model`` goes before one under ``model``, which is for any provider.
        """
        if len(model) > LONGEST_NAME or (provider is not None and len(provider) > LONGEST_NAME):
            return None
        return self._remembered(model, provider)

    def _find(self, model: str, provider: str | None) -> Price | None:
        named = None if provider is None else canonical(provider)
        named = None if named is None else self._providers.get(named, named)
        for name in candidates(model):
            if named is not None and (found := self._prices.get(f"{named}/{name}")) is not None:
                return found
            if (found := self._prices.get(name)) is not None:
                return found
        return None

    def over(self, base: PriceTable) -> PriceTable:
        """The prices of this table, and those of another where this one has none."""
        return PriceTable(
            f"{self.version}+{base.version}",
            {**base._prices, **self._prices},
            {**base._providers, **self._providers},
        )

    @classmethod
    def load(cls, path: str | Path) -> PriceTable:
        """A table of your own, from a file, over the one that comes with Toril."""
        return cls.parse(Path(path).read_bytes()).over(default_prices())

    @classmethod
    def parse(cls, raw: bytes) -> Self:
        """A table from JSON. An :class:`InvalidValue` says what is wrong with it, and where."""
        try:
            table = msgspec.json.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError) as problem:
            raise InvalidValue("price table", raw[:50], f"JSON, which this is not: {problem}") from None
        _check_names("price table", table, required={"version", "currency", "unit", "models"}, others=_OTHERS)
        _check_text("version", table["version"], 64)
        if table["version"] == "span":
            raise InvalidValue("version", "span", "any other text: span is for costs that a span states")
        for field, only in (("currency", "USD"), ("unit", UNIT)):
            if table[field] != only:
                raise InvalidValue(field, table[field], f"it must be {only!r}")
        providers = table.get("providers", {})
        _check_names("providers", providers)
        for name, made in providers.items():
            _check_text(f"providers.{name}", made, LONGEST_NAME)
        _check_names("models", table["models"])
        return cls(table["version"], _prices_of(table["models"]), providers)


@cache
def default_prices() -> PriceTable:
    """The list prices that come with Toril. Check them against your contract."""
    return PriceTable.parse(files(__package__).joinpath("list_prices.json").read_bytes())


_OTHERS = {"note", "providers"}
_PRICES = {"cache_read", "cache_write"}


def _prices_of(models: dict[str, Any]) -> dict[str, Price]:
    found: dict[str, Price] = {}
    for name, entry in models.items():
        field = f"models.{name}"
        _check_names(field, entry, required={"input", "output"}, others=_PRICES | {"aliases"})
        for part in sorted({"input", "output"} | (_PRICES & entry.keys())):
            amount = entry[part]
            if type(amount) is not int or not 0 <= amount <= LARGEST:
                rule = f"whole {UNIT}, from 0 to {LARGEST} (2.50 USD are 2500000000)"
                raise InvalidValue(f"{field}.{part}", amount, rule)
        aliases = entry.get("aliases", [])
        if not isinstance(aliases, list):
            raise InvalidValue(f"{field}.aliases", aliases, "a list of names")
        price = Price(**{part: amount for part, amount in entry.items() if part != "aliases"})
        for one in (name, *aliases):
            _check_text(field, one, LONGEST_NAME)
            if found.setdefault(canonical(one), price) is not price:
                raise InvalidValue(field, one, "each name once: capitals, and dots for dashes, are the same")
    return found


def _check_names(
    field: str, value: Any, required: set[str] | None = None, others: set[str] | None = None
) -> None:
    """An object, with these names where some are given."""
    if not isinstance(value, dict):
        raise InvalidValue(field, value, "an object")
    if required is None or others is None:
        return
    if missing := required - value.keys():
        raise InvalidValue(field, sorted(value), f"it must have {', '.join(sorted(missing))}")
    if unknown := value.keys() - required - others:
        known = ", ".join(sorted(required | others))
        raise InvalidValue(field, sorted(unknown), f"it can have {known}")


def _check_text(field: str, value: object, most: int) -> None:
    if not isinstance(value, str) or not 0 < len(value) <= most or not value.isprintable():
        raise InvalidValue(field, value, f"1 to {most} printable characters")
