"""Fixed logarithmic buckets: counts of whole numbers that merge exactly, and percentiles of them.

Sixteen buckets for each doubling, by whole numbers only. A number below 16 is its own bucket; a larger one
with so many bits that ``shift`` of them are below its highest five is in bucket
``shift * 16 + (number >> shift)``. So buckets up to 31 have one number each, and the others are at most a
sixteenth as wide as the numbers in them are large. A negative number mirrors: ``~bucket(~number)``.

The bucket of a number is the same in Python (:func:`bucket`), in Spark (:func:`bucket_sql`), and in
ClickHouse (in the guide). Two counts merge by adding up: in whatever order, however they are split, the
result is that of all numbers counted in one piece.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from toril.errors import InvalidValue

STEPS = 16
"""Buckets for each doubling."""

ERROR = Fraction(1, 2 * STEPS)
"""A percentile is at most so much beside the number of that rank, in parts of that number: 3.125 %."""

DIGITS = 6
"""Digits behind the point that the part of a percentile may have."""


def bucket(number: int) -> int:
    """The bucket that a number is in. Of larger numbers it is the same, or larger."""
    if number < 0:
        return ~bucket(~number)
    shift = max(0, number.bit_length() - 5)
    return shift * STEPS + (number >> shift)


def bounds(index: int) -> tuple[int, int]:
    """The smallest and the largest number of a bucket."""
    if index < 0:
        low, high = bounds(~index)
        return ~high, ~low
    shift = max(0, index // STEPS - 1)
    low = (index - shift * STEPS) << shift
    return low, low + (1 << shift) - 1


def middle(index: int) -> int:
    """The number that stands for all of a bucket."""
    if index < 0:
        return ~middle(~index)
    low, high = bounds(index)
    return low + (high - low) // 2


def percentile(counts: Mapping[int, int], part: float) -> int | None:
    """The number of rank ``part`` · count, rounded up: ``percentile(counts, 0.95)``. None without numbers.

    It is the middle of the bucket that has the number of this rank, so it is off by :data:`ERROR` at most.
    """
    share = _share(part)
    total = sum(counts.values())
    if not total:
        return None
    left = max(1, -(-share.numerator * total // share.denominator))
    for index in sorted(counts):
        left -= counts[index]
        if left <= 0:
            return middle(index)
    raise AssertionError("a rank is at most the count")


def merged(*counts: Mapping[int, int]) -> dict[int, int]:
    """Counts as one, in the order of buckets."""
    made: dict[int, int] = {}
    for each in counts:
        for index, count in each.items():
            made[index] = made.get(index, 0) + count
    return dict(sorted(made.items()))


# -------------------------------------------------------------------------------- the same as Spark SQL


def bucket_sql(number: str) -> str:
    """:func:`bucket` of a bigint, as an expression; null of null."""
    positive = f"(CASE WHEN {number} < 0 THEN ~{number} ELSE {number} END)"
    # length(bin(…)) is exact, where log2 of a large number is not.
    shift = f"(length(bin({positive})) - 5)"
    found = (
        f"(CASE WHEN {positive} < {STEPS} THEN CAST({positive} AS INT) "
        f"ELSE {shift} * {STEPS} + CAST(shiftright({positive}, {shift}) AS INT) END)"
    )
    return f"(CASE WHEN {number} < 0 THEN ~{found} ELSE {found} END)"


def middle_sql(index: str) -> str:
    """:func:`middle` of a bucket, as an expression."""
    positive = f"(CASE WHEN {index} < 0 THEN ~{index} ELSE {index} END)"
    shift = f"greatest(0, {positive} DIV {STEPS} - 1)"
    shift = f"CAST({shift} AS INT)"
    low = f"shiftleft(CAST({positive} - {shift} * {STEPS} AS BIGINT), {shift})"
    found = f"({low} + (shiftleft(1L, {shift}) - 1) DIV 2)"
    return f"(CASE WHEN {index} < 0 THEN ~{found} ELSE {found} END)"


def merged_sql(one: str, other: str) -> str:
    """:func:`merged` of two maps, as an expression."""
    added = f"map_zip_with({one}, {other}, (k, a, b) -> coalesce(a, 0L) + coalesce(b, 0L))"
    return f"map_from_entries(array_sort(map_entries({added})))"


def percentile_sql(counts: str, part: float) -> str:
    """:func:`percentile` of a map of counts, as an expression."""
    share = _share(part)
    total = f"aggregate(map_values({counts}), 0L, (a, b) -> a + b)"
    # In decimals: a part has up to six digits, and a count may have nineteen.
    times, by = f"CAST({share.numerator} AS DECIMAL(7,0))", f"CAST({share.denominator} AS DECIMAL(7,0))"
    rank = f"greatest(1L, CAST(ceil({times} * CAST({total} AS DECIMAL(19,0)) / {by}) AS BIGINT))"
    found = (
        f"aggregate(array_sort(map_entries({counts})), "
        f"named_struct('left', {rank}, 'at', CAST(NULL AS INT)), "
        "(a, e) -> named_struct('left', a.left - e.value, "
        "'at', CASE WHEN a.left > 0 AND a.left <= e.value THEN e.key ELSE a.at END), a -> a.at)"
    )
    # A lambda names what it is given, so that it is worked out once.
    return f"element_at(transform(array({found}), i -> {middle_sql('i')}), 1)"


def _share(part: float) -> Fraction:
    """The part as it is written: 0.95 is 95/100, and not the nearest binary fraction."""
    rule = f"a number from 0 to 1 with at most {DIGITS} digits behind the point, like 0.95"
    try:
        share = Fraction(str(part))
    except ValueError:
        raise InvalidValue("percentile", part, rule) from None
    if not 0 <= share <= 1 or 10**DIGITS % share.denominator:
        raise InvalidValue("percentile", part, rule)
    return share
