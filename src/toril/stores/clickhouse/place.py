"""Where the data is: a ClickHouse server by URL, or a directory of an engine inside of this process."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from toril.errors import InvalidValue

DEFAULT_PORTS = {"clickhouse": 8123, "clickhouses": 8443}

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")


@dataclass(frozen=True, slots=True)
class Remote:
    """A server's HTTP interface."""

    host: str
    port: int
    tls: bool
    database: str
    user: str = "default"
    password: str = field(default="", repr=False)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'clickhouses' if self.tls else 'clickhouse'}://{host}:{self.port}/{self.database}"


@dataclass(frozen=True, slots=True)
class Embedded:
    """A directory that one process at a time has."""

    directory: Path
    database: str

    def __str__(self) -> str:
        return f"{self.directory} (embedded)"


Place = Remote | Embedded


def place_of(url: str | None, directory: Path | None, database: str) -> Place:
    """What is meant by a URL or a directory: one of them must be given."""
    if (url is None) == (directory is None):
        raise InvalidValue("url and directory", (url and "…", directory), "exactly one of them must be given")
    if url is not None:
        return _remote(url, database)
    assert directory is not None
    return Embedded(Path(directory).expanduser().resolve(), check_database(database))


def check_database(name: str) -> str:
    """The name itself, or an :class:`InvalidValue`: it becomes a part of statements."""
    if isinstance(name, str) and _NAME.fullmatch(name):
        return name
    raise InvalidValue("database", name, "1 to 64 letters, digits and '_', no digit at the start")


def _remote(url: str, database: str) -> Remote:
    """Nothing of a URL is shown in an error: it may hold a password."""
    rule = "clickhouse://user:password@host:port/database, or clickhouses:// for TLS"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise InvalidValue("url", "…", rule) from None
    named = parts.path.strip("/")
    if (
        parts.scheme not in DEFAULT_PORTS
        or not parts.hostname
        or "/" in named
        or parts.query
        or parts.fragment
    ):
        raise InvalidValue("url", "…", rule)
    return Remote(
        host=parts.hostname,
        port=port or DEFAULT_PORTS[parts.scheme],
        tls=parts.scheme == "clickhouses",
        database=check_database(unquote(named) or database),
        user=unquote(parts.username or "default"),
        password=unquote(parts.password or ""),
    )
