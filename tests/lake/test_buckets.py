"""Buckets: the same everywhere, and merged exactly."""

from __future__ import annotations

import random
from collections import Counter
from fractions import Fraction
from math import ceil

import chdb
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from toril.errors import InvalidValue
from toril.lake.buckets import (
    ERROR,
    bounds,
    bucket,
    bucket_sql,
    merged,
    middle,
    middle_sql,
    percentile,
    percentile_sql,
)

BIGINT = st.integers(-(2**63), 2**63 - 1)
PARTS = (0, 0.001, 0.1, 0.25, 0.5, 0.9, 0.95, 0.99, 0.999999, 1)

SHIFT = "toUInt8(length(bin(v)) - position(bin(v), '1') - 4)"
CLICKHOUSE = f"toInt32(if(v < 16, v, {SHIFT} * 16 + bitShiftRight(v, {SHIFT})))"
"""Of the guide: the bucket of a number that is not negative."""

EDGES = sorted({edge for bit in range(63) for edge in (2**bit - 1, 2**bit, 2**bit + 1)} | {2**63 - 1})


def random_numbers(count: int) -> list[int]:
    chance = random.Random(8)
    return [chance.randrange(2 ** chance.randrange(1, 64)) for _ in range(count)]


@given(BIGINT)
def test_a_number_is_within_its_bucket_and_near_its_middle(number: int) -> None:
    index = bucket(number)
    low, high = bounds(index)
    assert low <= number <= high
    assert abs(middle(index) - number) <= abs(number) * ERROR
    assert bucket(low) == bucket(high) == index


@given(BIGINT, BIGINT)
def test_larger_numbers_are_in_the_same_or_a_larger_bucket(one: int, other: int) -> None:
    small, large = sorted((one, other))
    assert bucket(small) <= bucket(large)


def test_buckets_follow_each_other_without_a_gap() -> None:
    for index in range(bucket(-(2**63)), bucket(2**63 - 1)):
        assert bounds(index)[1] + 1 == bounds(index + 1)[0]
    assert (bucket(-(2**63)), bucket(2**63 - 1)) == (-960, 959)


@given(st.lists(BIGINT, min_size=1, max_size=200), st.randoms(use_true_random=False), st.sampled_from(PARTS))
def test_any_split_in_any_order_equals_one_piece(
    numbers: list[int], chance: random.Random, part: float
) -> None:
    whole = Counter(map(bucket, numbers))
    shuffled = chance.sample(numbers, len(numbers))
    cut = sorted(chance.choices(range(len(numbers) + 1), k=3))
    pieces = [shuffled[a:b] for a, b in zip([0, *cut], [*cut, len(numbers)], strict=True)]
    together = merged(*(Counter(map(bucket, piece)) for piece in pieces))
    assert together == whole
    assert list(together) == sorted(together)
    exact = sorted(numbers)[max(1, ceil(Fraction(str(part)) * len(numbers))) - 1]
    found = percentile(together, part)
    assert found is not None
    assert abs(found - exact) <= abs(exact) * ERROR


def test_a_percentile_that_is_none_is_refused() -> None:
    assert percentile({}, 0.5) is None
    for wrong in (-0.1, 1.1, 0.1234567, float("nan")):
        with pytest.raises(InvalidValue, match="percentile .* a number from 0 to 1"):
            percentile({1: 1}, wrong)


def test_spark_counts_as_python_does(spark: SparkSession) -> None:
    numbers = [sign for number in (*EDGES, *random_numbers(2000)) for sign in (number, ~number)]
    frame = spark.createDataFrame(pa.table({"v": pa.array(numbers, pa.int64())}))
    for row in frame.selectExpr(
        "v", f"{bucket_sql('v')} AS at", f"{middle_sql(bucket_sql('v'))} AS middle"
    ).collect():
        assert (row["at"], row["middle"]) == (bucket(row["v"]), middle(bucket(row["v"])))

    chance = random.Random(9)
    counts = [Counter(map(bucket, chance.sample(numbers, size))) for size in (0, 1, 2, 7, 100, 1000)]
    counts.append(Counter({3: 2**61, 700: 2**61}))
    rows = [(place, [*each.items()]) for place, each in enumerate(counts)]
    table = pa.table(
        {
            "place": pa.array([place for place, _ in rows]),
            "counts": pa.array([each for _, each in rows], pa.map_(pa.int32(), pa.int64())),
        }
    )
    parts = [f"{percentile_sql('counts', part)} AS p{place}" for place, part in enumerate(PARTS)]
    for row in spark.createDataFrame(table).selectExpr("place", *parts).collect():
        assert list(row)[1:] == [percentile(counts[row["place"]], part) for part in PARTS]


def test_clickhouse_counts_as_the_guide_says() -> None:
    numbers = [*EDGES, *random_numbers(2000)]
    said = chdb.query(f"SELECT {CLICKHOUSE} FROM (SELECT arrayJoin({numbers}) AS v)", "CSV")  # type: ignore[no-untyped-call]
    assert list(map(int, str(said).split())) == list(map(bucket, numbers))
