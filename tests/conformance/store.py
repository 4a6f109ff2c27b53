"""A raw look at a database: to dump and wipe it, to age its keys, to find the job that is meant.

Used by every side in the same way, so nothing here goes through an implementation under test.
"""

from __future__ import annotations

import re
import socket
from math import floor
from pathlib import Path
from typing import Any

import hiredis

from tests.conformance.dump import Key, read_dump
from tests.conformance.operations import At
from toril.connection.url import Address
from toril.connection.wire import Argument, ErrorReply, pack

STEP = 10_000
"""Milliseconds in a step of ``lua/age.lua``; the same number is in ``node/place.mjs``."""

_LUA = Path(__file__).parent / "lua"
_LISTS = frozenset({"wait", "paused", "active"})
_INCOMPLETE = object()


class Line:
    """One connection to one server: a command, then its reply."""

    def __init__(self, address: Address, db: int = 0) -> None:
        self._socket = socket.create_connection((address.host, address.port), timeout=10.0)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = hiredis.Reader(replyError=ErrorReply, notEnoughData=_INCOMPLETE)
        if db:
            self.ask("SELECT", db)

    def ask(self, *command: Argument) -> Any:
        """One command; an error reply is raised."""
        self._socket.sendall(pack(command))
        while (reply := self._reader.gets()) is _INCOMPLETE:
            data = self._socket.recv(1 << 20)
            if not data:
                raise ConnectionError("the server closed the connection")
            self._reader.feed(data)
        if isinstance(reply, ErrorReply):
            raise reply
        return reply

    def close(self) -> None:
        self._socket.close()


class Store:
    """One database of a server, or all primaries of a cluster."""

    def __init__(self, addresses: list[Address], db: int = 0, prefix: str = "bull") -> None:
        self.prefix = prefix
        self._glob = re.sub(r"[\\*?\[\]]", r"\\\g<0>", prefix) + ":*"
        self._lines = [Line(address, db) for address in addresses]
        self._scripts = {name: (_LUA / f"{name}.lua").read_text() for name in ("age", "dump", "wipe")}

    def close(self) -> None:
        for line in self._lines:
            line.close()

    def key(self, queue: str, suffix: str) -> str:
        """The name of a queue's key."""
        return f"{self.prefix}:{queue}:{suffix}"

    def ask(self, *command: Argument) -> Any:
        """A command about one key, to the server that has it."""
        for line in self._lines[:-1]:
            try:
                return line.ask(*command)
            except ErrorReply as problem:
                if not str(problem).startswith("MOVED"):
                    raise
        return self._lines[-1].ask(*command)

    def wipe(self) -> None:
        """Delete every key below the prefix."""
        self._everywhere("wipe")

    def dump(self) -> dict[str, Key]:
        """Every key below the prefix."""
        return read_dump(row for rows in self._everywhere("dump") for row in rows)

    def age(self, before: int, after: int) -> None:
        """Let keys grow older by the whole steps between two times of the tests' clock."""
        steps = floor(after / STEP) - floor(before / STEP)
        if steps > 0:
            self._everywhere("age", steps, STEP)

    def job_at(self, queue: str, place: At) -> str | None:
        """The id at a place of a state, as :class:`At` means it."""
        for state in place.states:
            key = self.key(queue, state)
            if state in _LISTS:
                found = self.ask("LINDEX", key, place.index)
            else:
                found = next(iter(self.ask("ZRANGE", key, place.index, place.index)), None)
            if found is not None:
                return str(found, "utf-8")
        return None

    def _everywhere(self, script: str, *args: Argument) -> list[Any]:
        source = self._scripts[script]
        return [line.ask("EVAL", source, 0, self._glob, *args) for line in self._lines]
