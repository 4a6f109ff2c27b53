"""Rows of a table on their way to this process: all of them in one pass, and never many at a time.

A task packs its rows into pieces of Arrow, by bytes, and compressed: what the driver holds of a task is about
what the files of its part have. A module of its own, as the workers need nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import DataFrame

PIECE = 4 << 20
"""Bytes of rows in a piece, about; a row is never divided."""


def in_chunks(rows: DataFrame, most: int, piece: int = PIECE) -> Iterator[pa.Table]:
    """All rows, as tables of about so many bytes."""
    packed = rows.mapInArrow(_Packing(piece), "piece binary")
    held: list[pa.RecordBatch] = []
    size = 0
    for row in packed.toLocalIterator(prefetchPartitions=True):
        with pa.ipc.open_stream(row["piece"]) as stream:
            held += (read := list(stream))
        size += sum(batch.nbytes for batch in read)
        if size >= most:
            yield pa.Table.from_batches(held)
            held, size = [], 0
    if held:
        yield pa.Table.from_batches(held)


class _Packing:
    """What each task does."""

    def __init__(self, piece: int) -> None:
        self._piece = piece

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        for batch in batches:
            step = max(1, batch.num_rows * self._piece // max(self._piece, batch.nbytes))
            for first in range(0, batch.num_rows, step):
                written = pa.BufferOutputStream()
                with pa.ipc.new_stream(written, batch.schema, options=options) as stream:
                    stream.write_batch(batch.slice(first, step))
                yield pa.RecordBatch.from_pydict({"piece": [written.getvalue().to_pybytes()]})
