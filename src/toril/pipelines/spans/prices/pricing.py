"""The cost of a span."""

from __future__ import annotations

import msgspec

from toril.pipelines.spans.prices.table import PriceTable
from toril.pipelines.spans.span import Span


def priced(span: Span, table: PriceTable) -> Span:
    """The span with its cost by the table, and the table's version; as it is, where that is not to be said.

    A cost that the span states is kept. Without a model that the table knows, or without tokens, there is
    none: unknown is not free.
    """
    ai = span.ai
    if ai is None or ai.cost is not None:
        return span
    for model in ai.models:
        if (price := table.price(model, ai.provider)) is not None:
            cost = price.cost(ai.input_tokens, ai.output_tokens, ai.cache_read_tokens, ai.cache_write_tokens)
            if cost is None:
                return span
            known = msgspec.structs.replace(ai, cost=cost, cost_from=table.version)
            return msgspec.structs.replace(span, ai=known)
    return span
