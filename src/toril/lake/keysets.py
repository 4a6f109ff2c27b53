"""Keys of several sides, which may be more than memory holds: what only one of them has.

They are kept on this machine's disk, in parts by their hash: a key is in the same part for all sides, so the
sides are compared part by part. Each side is read once, in whatever order it comes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Self

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession

PARTS = 256
"""Of a hundred million keys, a part has four hundred thousand."""

AT_ONCE = 50_000
"""Keys that are in memory before they are written."""

Key = tuple[str, ...]

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(tuple[str, Key, Any]).decode


class Keysets:
    """See the module's text.

    ::

        with Keysets() as keys:
            keys.add("lake", ("acme", "a"))
            keys.add("live", ("acme", "b"))
            for part in keys.parts():
                lost = part["live"].keys() - part["lake"].keys()
    """

    def __init__(self) -> None:
        self._folder = TemporaryDirectory(prefix="toril-keys-")
        self._held: defaultdict[int, list[bytes]] = defaultdict(list)
        self._count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._folder.cleanup()

    def add(self, side: str, key: Key, value: Any = None) -> None:
        """A key that a side has, and what it says of it, which JSON can say; of several, the last counts."""
        self._held[hash(key) % PARTS].append(_encode((side, key, value)))
        self._count += 1
        if self._count == AT_ONCE:
            self._write()

    def parts(self) -> Iterator[dict[str, dict[Key, Any]]]:
        """By side, its keys and what it says of them: of one part after the other."""
        self._write()
        for path in sorted(Path(self._folder.name).iterdir()):
            found: dict[str, dict[Key, Any]] = defaultdict(dict)
            with path.open("rb") as file:
                for line in file:
                    side, key, value = _decode(line)
                    found[side][key] = value
            yield found

    def _write(self) -> None:
        for part, lines in self._held.items():
            # Not all of them stay open: a process may not have so many files.
            with (Path(self._folder.name) / f"{part:03d}").open("ab") as file:
                file.write(b"\n".join((*lines, b"")))
        self._held.clear()
        self._count = 0


def named(spark: SparkSession, names: Sequence[str], keys: Sequence[Key]) -> DataFrame:
    """Some keys as rows of text. From Arrow, so that Spark works on them where it is, without a job."""
    columns = zip(*keys, strict=True)
    return spark.createDataFrame(
        pa.table({name: pa.array(said, pa.string()) for name, said in zip(names, columns, strict=True)})
    )
