"""A connection: commands and scripts, sent to the right server, waited out through a failover.

The rule that everything here serves: **no call is lost, and none is executed twice behind the
caller's back.** A call that was not executed (refused, redirected, never sent) is sent again until the
patience ends. A call that may have been executed is sent again only if that is harmless.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self
from weakref import WeakSet

from toril.connection.durability import (
    FSYNC_DURING_REWRITE,
    SETTINGS,
    Durability,
    Level,
    require_fsync,
)
from toril.connection.errors import (
    PASSING,
    CommandRefused,
    ConnectionFailed,
    CrossSlot,
    OutcomeUnknown,
    OutOfMemory,
    ScriptBusy,
    ScriptFailed,
    Unavailable,
    code_of,
)
from toril.connection.node import CLOSED, Node
from toril.connection.scripts import Script, ScriptCount
from toril.connection.subscription import Subscription
from toril.connection.topology import ClusterTopology, Shard, Topology, redirection
from toril.connection.url import Address
from toril.connection.wire import Argument, Broken, Command, ErrorReply, NotSent
from toril.errors import InvalidValue
from toril.keyspace import Key, KeySet, slot_of

FIRST_PAUSE, LONGEST_PAUSE = 0.02, 0.25
"""Seconds between tries; doubled each time, with full jitter."""

_RIGHT_BUT_NOT_YET = frozenset({"BUSY", "LOADING", "TRYAGAIN"})
"""Passing errors that come from the right server, so there is nobody else to look for."""

_REFUSALS = {"CROSSSLOT": CrossSlot, "OOM": OutOfMemory, "BUSY": ScriptBusy}


QUESTIONS: tuple[Command, ...] = (("INFO", "server"), ("COMMAND", "LIST", "FILTERBY", "ACLCAT", "read"))
"""What a server is asked when a connection is made."""


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What a server says of itself."""

    product: str
    version: str
    clustered: bool
    has_waitaof: bool
    reads: frozenset[str] = field(default=frozenset(), repr=False)
    """The commands that only read, in capitals: those may be sent again after a broken connection."""

    @classmethod
    def read(cls, info: bytes, reads: Sequence[bytes] = ()) -> ServerFacts:
        """From the replies to :data:`QUESTIONS`."""
        fields = dict(
            line.split(":", 1) for line in info.decode(errors="replace").splitlines() if ":" in line
        )
        product = "valkey" if "valkey_version" in fields else "redis"
        version = fields.get("valkey_version") or fields.get("redis_version", "0")
        level = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
        clustered = fields.get("redis_mode", fields.get("server_mode")) == "cluster"
        names = frozenset(name.decode().upper() for name in reads)
        return cls(product, version, clustered, level >= (7, 2), names)


class Connection:
    """A connection to a server or a cluster. Made by :func:`toril.connect`; safe for many tasks."""

    def __init__(
        self,
        topology: Topology,
        facts: ServerFacts,
        url: str,
        patience: float,
        another: Callable[[str], Awaitable[Connection]],
    ) -> None:
        self.url = url
        """Where it leads, without passwords."""
        self.another = another
        """Opens one more connection to the same place, under a client name of its own."""
        self.facts = facts
        self.script_counts: defaultdict[str, ScriptCount] = defaultdict(ScriptCount)
        self._topology = topology
        self._patience = patience
        self._fsync_checked: dict[Address, int] = {}
        self._subscriptions: WeakSet[Subscription] = WeakSet()
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close it; calls under way end with an error, subscriptions just end."""
        self._closed = True
        for subscription in list(self._subscriptions):
            await subscription.close()
        await self._topology.close()

    @property
    def clustered(self) -> bool:
        """Whether the other side is a cluster."""
        return self._topology.clustered

    async def shards(self) -> Sequence[Shard]:
        """The shards of the cluster, asked anew; one shard with all slots where there is no cluster."""
        return await self._topology.shards()

    # ------------------------------------------------------------------ calls

    async def command(
        self,
        *args: Argument,
        durability: Durability | Level = "memory",
        blocks_for: float | None = None,
        repeatable: bool = False,
        replica: bool = False,
        near: Key | None = None,
    ) -> Any:
        """Send one command, to the server that has its keys; the reply as the server gave it.

        The keys are the arguments of type :class:`~toril.keyspace.Key`. ``blocks_for`` says how long the
        command may block, and gives it a connection of its own. ``repeatable`` says that executing it
        twice is harmless (reads always are). ``replica`` lets a replica answer: for display only. A command
        without keys goes to any server, or to the one that has ``near``.
        """
        if not args:
            raise InvalidValue("command", args, "it needs at least its name")
        slot = _slot(args if near is None else (*args, near))
        call = _Call(str(args[0]).upper(), args, slot, Durability.of(durability))
        call.blocks_for, call.repeatable, call.replica = blocks_for, repeatable, replica
        return await self._carry_out(call)

    async def run(
        self,
        script: Script,
        keys: KeySet | Sequence[Key],
        *args: Argument,
        durability: Durability | Level = "memory",
        repeatable: bool = False,
    ) -> Any:
        """Call a script on a key set, or on keys given in the order of its header."""
        if isinstance(keys, KeySet):
            if keys.kind != script.kind:
                raise InvalidValue(
                    "key set", keys, f"script {script.name} works on a {script.kind}, not a {keys.kind}"
                )
            keys = [getattr(keys, name) for name in script.keys]
        elif len(keys) != len(script.keys):
            raise InvalidValue("keys", keys, f"script {script.name} takes {' '.join(script.keys)}")
        evalsha: Command = ("EVALSHA", script.sha, len(keys), *keys, *args)
        call = _Call(script.name, evalsha, _slot(keys), Durability.of(durability))
        call.script, call.repeatable = script, repeatable or script.reads_only
        count = self.script_counts[script.name]
        count.calls += 1
        started = time.perf_counter()
        try:
            return await self._carry_out(call)
        except CommandRefused as problem:
            count.errors[problem.code] += 1
            raise
        finally:
            count.seconds += time.perf_counter() - started

    async def read_many(self, commands: Sequence[Command], near: Key) -> list[Any]:
        """Commands that only read, of keys in the slot of ``near``, in one request; replies in their order.

        Where one request does not bring them all (a slot moves, a connection breaks), each is asked for
        by itself.
        """
        if strange := {str(command[0]).upper() for command in commands} - self.facts.reads:
            raise InvalidValue("commands", sorted(strange), "only those that change nothing")
        if self._closed:
            raise ConnectionFailed(f"nothing was read: {CLOSED}")
        with suppress(NotSent, Broken):
            node = await self._topology.primary(slot_of(near))
            replies = await node.ask(commands)
            if not any(isinstance(reply, ErrorReply) for reply in replies):
                return replies
        return [await self.command(*command) for command in commands]

    async def each_primary(self, *args: Argument) -> dict[Address, Any]:
        """Send a command that has no key to every primary; replies by address."""
        replies = {}
        for shard in await self.shards():
            call = _Call(str(args[0]).upper(), args, None, Durability("memory"))
            call.at = shard.primary
            replies[shard.primary] = await self._carry_out(call)
        return replies

    async def scan(self, pattern: str = "*", *, page: int = 500) -> AsyncIterator[bytes]:
        """All keys that match, from every primary, in small steps that never hold a server up.

        A key may come twice, as SCAN has it. Keys that come or go meanwhile may be seen or not.
        """
        for shard in await self.shards():
            cursor = b"0"
            while True:
                step = ("SCAN", cursor, "MATCH", pattern, "COUNT", page)
                call = _Call("SCAN", step, None, Durability("memory"))
                call.at, call.repeatable = shard.primary, True
                cursor, found = await self._carry_out(call)
                for key in found:
                    yield key
                if cursor == b"0":
                    break

    def subscribe(self, channels: Iterable[Key] = ()) -> Subscription:
        """Hear which of the channels were rung (``SPUBLISH``), each from the server that has its slot.

        To be entered with ``async with`` and iterated; see :class:`Subscription`.
        """
        if self._closed:
            raise ConnectionFailed(f"nothing was subscribed to: {CLOSED}")
        made = Subscription(self._topology, channels)
        self._subscriptions.add(made)
        return made

    # ------------------------------------------------------------------ carrying a call out

    async def _carry_out(self, call: _Call) -> Any:
        if self._closed:
            raise ConnectionFailed(f"{call.name} was not executed: {CLOSED}")
        until = time.monotonic() + self._patience
        pause = FIRST_PAUSE
        while True:
            node: Node | None = None
            try:
                node = call.redirected or await self._find(call)
                replies = await self._ask(node, call)
            except NotSent as problem:
                passing: BaseException = problem
            except Broken as problem:
                if not call.repeatable and call.name not in self.facts.reads:
                    raise OutcomeUnknown(
                        f"{call.name}: the connection broke before the reply ({problem}); "
                        "it may or may not have been executed"
                    ) from None
                call.maybe_executed = True
                passing = problem
            else:
                result = replies[call.result_at]
                if call.load and isinstance(replies[0], ErrorReply):
                    result = replies[0]  # a script that the server cannot compile
                if not isinstance(result, ErrorReply):
                    if call.confirms:
                        call.durability.check(replies[-1], result)
                    return result
                code = code_of(str(result))
                if self._redirect(call, node, code, str(result)):
                    continue
                if code not in PASSING and code not in ("MOVED", "ASK"):
                    raise _refusal(call, str(result)) from None
                passing = result
            call.redirected, call.redirections = None, 0
            call.asking = False
            if self._closed:
                raise ConnectionFailed(f"{call.name} was not executed: {CLOSED}")
            if time.monotonic() + pause > until:
                raise _gave_up(call, passing, self._patience)
            await asyncio.sleep(pause * random.random())
            pause = min(pause * 2, LONGEST_PAUSE)
            if not (isinstance(passing, ErrorReply) and code_of(str(passing)) in _RIGHT_BUT_NOT_YET):
                await self._look_again(node)

    async def _find(self, call: _Call) -> Node:
        if call.at is not None:
            return self._topology.node(call.at)
        if call.replica:
            return await self._topology.replica(call.slot)
        return await self._topology.primary(call.slot)

    async def _look_again(self, failed: Node | None) -> None:
        with suppress(NotSent, Broken):  # nobody answers yet; the next try will tell
            await self._topology.look_again(failed)

    async def _ask(self, node: Node, call: _Call) -> list[Any]:
        """Send the call with what must travel with it, on one connection, as one request."""
        commands: list[Command] = []
        if call.load and call.script is not None:
            commands.append(("SCRIPT", "LOAD", call.script.source))
        if call.asking:
            commands.append(("ASKING",))
        call.result_at = len(commands)
        commands.append(call.command)
        if call.durability.level == "fsync":
            await self._require_fsync(node)
        confirmation = call.durability.confirmation(self.facts.has_waitaof)
        call.confirms = confirmation is not None
        if confirmation is not None:
            commands.append(confirmation)
        if call.blocks_for is not None:
            return await node.ask_alone(commands, call.blocks_for)
        if call.durability.level == "replicated":
            # WAIT blocks its connection and counts only there, so it must not share one.
            return await node.ask_alone(commands, call.durability.timeout)
        return await node.ask(commands)

    def _redirect(self, call: _Call, node: Node, code: str, text: str) -> bool:
        """Whether an error reply says to send the call again at once, and how."""
        if code == "NOSCRIPT" and call.script is not None and not call.load:
            self.script_counts[call.name].errors[code] += 1
            call.load = True  # on this server only: stay there
            return True
        call.load = False
        if code == "MOVED" and isinstance(self._topology, ClusterTopology):
            slot, address = redirection(text, node.address)
            call.redirections += 1
            self._topology.moved(slot, address)
            call.redirected, call.asking = None, False
            return call.redirections < 16  # two servers that point at each other: wait a little
        if code == "ASK" and isinstance(self._topology, ClusterTopology):
            call.redirected = self._topology.node(redirection(text, node.address)[1])
            call.asking = True
            return True
        return False

    async def _require_fsync(self, node: Node) -> None:
        # Once per dial: the server behind an address may be another one after a restart or failover.
        if self._fsync_checked.get(node.address) != node.dials:
            require_fsync(await node.ask([SETTINGS, FSYNC_DURING_REWRITE]))
            self._fsync_checked[node.address] = node.dials


class _Call:
    """One call on its way, with what was learned about it."""

    __slots__ = (
        "asking",
        "at",
        "blocks_for",
        "command",
        "confirms",
        "durability",
        "load",
        "maybe_executed",
        "name",
        "redirected",
        "redirections",
        "repeatable",
        "replica",
        "result_at",
        "script",
        "slot",
    )

    def __init__(self, name: str, command: Command, slot: int | None, durability: Durability) -> None:
        self.name = name
        self.command = command
        self.slot = slot
        self.durability = durability
        self.script: Script | None = None
        self.at: Address | None = None
        self.blocks_for: float | None = None
        self.repeatable = False
        self.replica = False
        self.load = False
        self.asking = False
        self.redirected: Node | None = None
        self.redirections = 0
        self.result_at = 0
        self.confirms = False
        self.maybe_executed = False


def _slot(args: Sequence[object]) -> int | None:
    """The one slot of all keys among arguments; refuses more than one, on any topology."""
    slot: int | None = None
    first: Key | None = None
    for arg in args:
        if isinstance(arg, Key):
            own = slot_of(arg)
            if slot is None:
                slot, first = own, arg
            elif own != slot:
                raise CrossSlot(
                    f"CROSSSLOT {first!r} is in slot {slot} and {arg!r} in slot {own}: "
                    "keys of one call need one hash tag (nothing was sent)"
                )
    return slot


def _refusal(call: _Call, text: str) -> CommandRefused:
    code = code_of(text)
    if call.script is None:
        return _REFUSALS.get(code, CommandRefused)(text)
    stated = call.script.errors.get(code)
    if stated is not None:
        return stated(text)
    kind = _REFUSALS.get(code, ScriptFailed if code == "ERR" else CommandRefused)
    return kind(f"{text} (script {call.name})")


def _gave_up(call: _Call, problem: BaseException, patience: float) -> Exception:
    if call.maybe_executed:
        return OutcomeUnknown(
            f"{call.name} was sent again for {patience:g} s and got no reply; the last problem: {problem}"
        )
    if isinstance(problem, ErrorReply) and code_of(str(problem)) == "BUSY":
        return ScriptBusy(str(problem))
    return Unavailable(f"{call.name} was not executed: for {patience:g} s the server answered: {problem}")
