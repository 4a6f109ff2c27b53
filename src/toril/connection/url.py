"""One URL says which server: standalone, cluster, sentinel or embedded."""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit, urlunsplit

from toril.errors import InvalidValue

DEFAULT_PORT = 6379
DEFAULT_SENTINEL_PORT = 26379

Mode = Literal["detect", "cluster", "sentinel", "embedded", "embedded-cluster", "memory"]


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens: host and port, or the path of a unix socket."""

    host: str = ""
    port: int = 0
    path: str = ""

    def __str__(self) -> str:
        if self.path:
            return self.path
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Credentials:
    """Who Toril is to the server. Never shown."""

    username: str = ""
    password: str = ""

    def __repr__(self) -> str:
        return f"Credentials({self.username or 'default'!r}, ***)"


@dataclass(frozen=True, slots=True)
class Tls:
    """How the server's certificate is checked, and which one is shown to it."""

    ca_certs: str = ""
    certfile: str = ""
    keyfile: str = ""
    verify: bool = True
    check_hostname: bool = True

    def context(self) -> ssl.SSLContext:
        """The TLS settings as Python's ssl module takes them."""
        made = ssl.create_default_context(cafile=self.ca_certs or None)
        made.check_hostname = self.verify and self.check_hostname
        made.verify_mode = ssl.CERT_REQUIRED if self.verify else ssl.CERT_NONE
        if self.certfile:
            made.load_cert_chain(self.certfile, self.keyfile or None)
        return made


@dataclass(frozen=True, slots=True)
class Target:
    """What a URL means."""

    mode: Mode
    addresses: tuple[Address, ...] = ()
    credentials: Credentials | None = None
    tls: Tls | None = None
    database: int = 0
    service: str = ""
    """Sentinel only: the name of the master."""
    sentinel_credentials: Credentials | None = None
    home: str = ""
    """Embedded only: the data directory; empty for the default."""
    fsync: Literal["always", "everysec"] = "always"
    """Embedded only: when the server's append-only file goes to disk."""


_SCHEMES: Mapping[str, tuple[Mode, bool]] = {
    "redis": ("detect", False),
    "rediss": ("detect", True),
    "valkey": ("detect", False),
    "valkeys": ("detect", True),
    "unix": ("detect", False),
    "redis+cluster": ("cluster", False),
    "rediss+cluster": ("cluster", True),
    "redis+sentinel": ("sentinel", False),
    "rediss+sentinel": ("sentinel", True),
    "embedded": ("embedded", False),
    "embedded+cluster": ("embedded-cluster", False),
    "memory": ("memory", False),
}

_TLS_PARAMETERS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "ssl_check_hostname")


_STRAY = re.compile(r"((?:[^:/@]*://|rediss?:)?[^:/@]*:).*@", re.DOTALL)


def _is_stray(parts: SplitResult) -> bool:
    """Whether user and password are not where they belong: ``/ ? #`` in a password end the part for them."""
    if "@" in parts.netloc or parts.scheme in ("unix", "embedded", "embedded+cluster", "memory"):
        return False
    names = [pair.partition("=")[0] for pair in parts.query.split("&")]
    port = parts.netloc.rpartition(":")[2] if ":" in parts.netloc else "0"
    no_port = "@" in parts.query and not port.isdigit()
    return no_port or any("@" in part for part in (parts.path, parts.fragment, *names))


def hide_password(url: str) -> str:
    """The URL as it may be shown: without passwords."""
    if "@" not in url and "password=" not in url.lower():
        return url
    try:
        parts = urlsplit(url)
    except ValueError:  # where a password would stand cannot be said
        return "***"
    if _is_stray(parts):
        return _STRAY.sub(r"\1***@", url) if _STRAY.match(url) else "***"
    if "@" not in parts.netloc and "password=" not in parts.query.lower():
        return url
    if "@" in parts.netloc:
        user, _, hosts = parts.netloc.rpartition("@")
        name = user.partition(":")[0]
        parts = parts._replace(netloc=f"{name}:***@{hosts}" if ":" in user else f"{name}@{hosts}")
    if "password=" in parts.query.lower():
        kept = [
            pair if "password" not in pair.partition("=")[0].lower() else f"{pair.partition('=')[0]}=***"
            for pair in parts.query.split("&")
        ]
        parts = parts._replace(query="&".join(kept))
    return urlunsplit(parts)


def parse_url(url: str) -> Target:
    """Read a URL; an :class:`~toril.errors.InvalidValue` names what is wrong with it."""
    if not isinstance(url, str):
        raise InvalidValue("Redis URL", url, "it must be a string like redis://localhost:6379/0")
    return _Reader(url).target()


class _Reader:
    """Takes one URL apart, and refuses what it does not understand."""

    def __init__(self, url: str) -> None:
        self.shown = hide_password(url)
        try:
            self.parts = urlsplit(url)
        except ValueError as problem:
            raise self.wrong(str(problem)) from None
        if _is_stray(self.parts) and self.parts.scheme in _SCHEMES:
            raise self.wrong("in a user or a password, / ? # and % are written %2F %3F %23 and %25")
        self.query = self._read_query()

    def wrong(self, rule: str) -> InvalidValue:
        return InvalidValue("Redis URL", self.shown, rule)

    def _read_query(self) -> dict[str, str]:
        query: dict[str, str] = {}
        for name, value in parse_qsl(self.parts.query, keep_blank_values=True):
            if name in query:
                raise self.wrong(f"the parameter {name!r} is given twice")
            query[name] = value
        return query

    def take(self, name: str, default: str = "") -> str:
        return self.query.pop(name, default)

    def take_choice(self, name: str, choices: Mapping[str, bool], default: bool) -> bool:
        value = self.query.pop(name, None)
        if value is None:
            return default
        if value.lower() not in choices:
            raise self.wrong(f"the parameter {name} must be one of {', '.join(choices)}, not {value!r}")
        return choices[value.lower()]

    def target(self) -> Target:
        scheme = self.parts.scheme
        if scheme not in _SCHEMES:
            known = ", ".join(f"{name}://" for name in _SCHEMES)
            raise self.wrong(f"the scheme must be one of {known}")
        mode, tls = _SCHEMES[scheme]
        if mode == "memory":
            made = self._memory()
        elif mode in ("embedded", "embedded-cluster"):
            made = self._embedded(mode)
        elif scheme == "unix":
            made = self._unix()
        else:
            made = self._network(mode, tls)
        if self.query:
            raise self.wrong(f"it has parameters that mean nothing here: {', '.join(sorted(self.query))}")
        return made

    def _memory(self) -> Target:
        if self.parts.netloc or self.parts.path.strip("/"):
            raise self.wrong("memory:// takes no host and no path")
        return Target("memory")

    def _embedded(self, mode: Mode) -> Target:
        if self.parts.netloc:
            raise self.wrong("the data directory goes into the path: embedded:///var/lib/toril")
        always = self.take_choice("fsync", {"always": True, "everysec": False}, default=True)
        return Target(mode, home=unquote(self.parts.path), fsync="always" if always else "everysec")

    def _unix(self) -> Target:
        path = unquote(self.parts.path)
        if not path or self.parts.hostname:
            raise self.wrong("a unix socket is given as an absolute path: unix:///run/valkey.sock")
        database = self._database(self.take("db", "0"))
        return Target("detect", (Address(path=path),), self._credentials(), database=database)

    def _network(self, mode: Mode, tls: bool) -> Target:
        path = unquote(self.parts.path).strip("/")
        service, sentinel_credentials = "", None
        if mode == "sentinel":
            service, _, path = path.partition("/")
            if not service:
                raise self.wrong("the master's name is missing: redis+sentinel://h1,h2/mymaster/0")
            sentinel_credentials = self._sentinel_credentials()
        database = self._database(self.take("db", path or "0"))
        if mode == "cluster" and database:
            raise self.wrong("a cluster has only database 0")
        addresses = self._addresses(DEFAULT_SENTINEL_PORT if mode == "sentinel" else DEFAULT_PORT)
        if mode == "detect" and len(addresses) > 1:
            raise self.wrong("several hosts need redis+cluster:// or redis+sentinel://")
        return Target(
            mode,
            addresses,
            self._credentials(),
            self._tls() if tls else None,
            database,
            service,
            sentinel_credentials,
        )

    def _credentials(self) -> Credentials | None:
        user, password = self.parts.username or "", self.parts.password or ""
        # redis-py and the servers' own tools know both forms: in front of the host and as parameters.
        user = self.take("username", unquote(user))
        password = self.take("password", unquote(password))
        if user and not password:
            raise self.wrong("it has a user but no password: redis://user:password@host, or :password@")
        return Credentials(user, password) if password else None

    def _sentinel_credentials(self) -> Credentials | None:
        user, password = self.take("sentinel_username"), self.take("sentinel_password")
        return Credentials(user, password) if password else None

    def _tls(self) -> Tls:
        files = {name: self.take(name) for name in _TLS_PARAMETERS[:3]}
        for name, path in files.items():
            if path and not Path(path).is_file():
                raise self.wrong(f"the parameter {name} names {path!r}, which is not a file")
        return Tls(
            files["ssl_ca_certs"],
            files["ssl_certfile"],
            files["ssl_keyfile"],
            self.take_choice("ssl_cert_reqs", {"required": True, "none": False}, True),
            self.take_choice("ssl_check_hostname", {"true": True, "false": False}, True),
        )

    def _database(self, text: str) -> int:
        if not text.isascii() or not text.isdigit():
            raise self.wrong(f"the database must be a whole number from 0 up, not {text!r}")
        return int(text)

    def _addresses(self, default_port: int) -> tuple[Address, ...]:
        hosts = self.parts.netloc.rpartition("@")[2]
        if not hosts:
            return (Address("localhost", default_port),)
        return tuple(self._address(part, default_port) for part in hosts.split(","))

    def _address(self, text: str, default_port: int) -> Address:
        if text.startswith("["):
            host, closed, rest = text[1:].partition("]")
            if not closed or (rest and not rest.startswith(":")):
                raise self.wrong(f"{text!r} is not a host and port")
            port = rest[1:]
        else:
            host, _, port = text.partition(":")
        if not host:
            raise self.wrong(f"{text!r} has no host")
        if port and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
            raise self.wrong(f"the port must be a whole number from 1 to 65535, not {port!r}")
        return Address(unquote(host), int(port) if port else default_port)
