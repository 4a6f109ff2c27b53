"""What spans cost, from a versioned table of prices, in exact whole numbers."""

from toril.pipelines.spans.prices.pricing import priced
from toril.pipelines.spans.prices.table import Price, PriceTable, default_prices

__all__ = ["Price", "PriceTable", "default_prices", "priced"]
