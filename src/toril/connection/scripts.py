"""Lua scripts: loaded from files, named by their path, described by their header.

A script file starts with a shebang that states its flags, then a header in comments::

    #!lua flags=allow-oom
    -- Finish a job and fetch the next one.
    -- keyspace: queue
    -- keys: wait active completed
    -- args: job id, token, now
    -- result: the next job, or nil

``keys`` are attributes of the keyspace's key set, in the order of ``KEYS``. A line
``-- include: queue/target`` is replaced by that file, once per script.

Flags decide what happens on a server that is full (design, decision 12): ``no-writes`` for scripts that
only read, ``allow-oom`` for those that finish, commit, trim or delete, none for those that add.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

from toril.connection.errors import CommandRefused
from toril.errors import TorilError
from toril.keyspace import KEY_SETS, Kind

FLAGS = frozenset({"no-writes", "allow-oom"})
"""The flags Toril's scripts use. Others (``allow-cross-slot-keys``, say) would break its promises."""

_SHEBANG = re.compile(r"#!lua(?: flags=([a-z,-]+))?")
_FIELD = re.compile(r"-- (keyspace|keys|args|result): (.+)")
_INCLUDE = re.compile(r"-- include: ([a-z0-9_/]+)")


class BadScript(TorilError):
    """A script file that does not say what it must say."""


@dataclass(frozen=True, slots=True)
class Script:
    """One Lua script, ready to be called."""

    name: str
    source: str
    sha: str
    keys: tuple[str, ...]
    """The attributes of the key set that become ``KEYS``."""
    kind: Kind
    """The kind of keyspace it works on."""
    flags: frozenset[str] = frozenset()
    errors: Mapping[str, Callable[[str], CommandRefused]] = field(default_factory=dict, hash=False)
    """The errors it states itself, by code: ``redis.error_reply('CONFLICT …')`` becomes a typed one."""

    @property
    def reads_only(self) -> bool:
        """Whether it changes nothing, and so may be sent again after a broken connection."""
        return "no-writes" in self.flags


@dataclass(slots=True)
class ScriptCount:
    """What one script has cost so far."""

    calls: int = 0
    seconds: float = 0.0
    errors: Counter[str] = field(default_factory=Counter)
    """By the server's error code: ``CROSSSLOT``, ``NOSCRIPT``, ``BUSY``, ``OOM`` …"""


def load_script(
    name: str,
    folder: Traversable | None = None,
    errors: Mapping[str, Callable[[str], CommandRefused]] | None = None,
) -> Script:
    """The script ``<room>/<verb>`` of ``toril/lua/``, or of a folder of your own."""
    script = _toril_script(name) if folder is None else _read(name, folder)
    return replace(script, errors=errors) if errors else script


@cache
def _toril_script(name: str) -> Script:
    return _read(name, files("toril") / "lua")


def _read(name: str, folder: Traversable) -> Script:
    lines = _file(name, folder)
    shebang = _SHEBANG.fullmatch(lines[0])
    if shebang is None:
        raise BadScript(f"lua/{name}.lua must start with '#!lua' or '#!lua flags=…', not {lines[0]!r}")
    flags = frozenset(shebang[1].split(",") if shebang[1] else ())
    if unknown := flags - FLAGS:
        raise BadScript(f"lua/{name}.lua has flags Toril does not use: {', '.join(sorted(unknown))}")
    header = {found[1]: found[2] for line in lines if (found := _FIELD.fullmatch(line))}
    if missing := {"keyspace", "keys", "args", "result"} - header.keys():
        raise BadScript(f"the header of lua/{name}.lua does not state: {', '.join(sorted(missing))}")
    key_set = next((made for kind, made in KEY_SETS.items() if kind == header["keyspace"]), None)
    if key_set is None:
        raise BadScript(f"lua/{name}.lua names the keyspace {header['keyspace']!r}, which does not exist")
    keys = tuple(header["keys"].split())
    if strange := [key for key in keys if key != "base" and not hasattr(key_set, key)]:
        raise BadScript(f"lua/{name}.lua takes keys that {key_set.__name__} lacks: {', '.join(strange)}")
    source = "\n".join(_with_includes(lines, folder, set()))
    sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
    return Script(name, source, sha, keys, key_set.kind, flags)


def _file(name: str, folder: Traversable) -> list[str]:
    path = folder / f"{name}.lua"
    if not path.is_file():
        raise BadScript(f"there is no script lua/{name}.lua")
    return path.read_text(encoding="utf-8").splitlines()


def _with_includes(lines: list[str], folder: Traversable, seen: set[str]) -> list[str]:
    whole: list[str] = []
    for line in lines:
        found = _INCLUDE.fullmatch(line)
        if found is None:
            whole.append(line)
        elif found[1] not in seen:
            seen.add(found[1])
            whole += _with_includes(_file(found[1], folder), folder, seen)
    return whole
