"""Node's BullMQ 5.62.0 as a process that answers questions.

::

    async with NodeOracle() as oracle:
        await oracle.call("open", place="a", host="127.0.0.1", port=6379, db=0)
        await oracle.call("add", place="a", queue="q", name="mail", data={})

What it can be asked is in ``node/oracle.mjs`` and the modules beside it. Nothing is installed here: that
is ``npm ci``, once, in the folder ``node``.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from asyncio.subprocess import PIPE, Process
from collections import deque
from contextlib import suppress
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Self

NODE = Path(__file__).parent / "node"
BULLMQ = "5.62.0"

_LONGEST_LINE = 256 * 1024 * 1024
_CLOSING_TAKES = 10.0


class OracleMissing(RuntimeError):
    """Node or its packages are not there; the message says what to run."""


class OracleDied(RuntimeError):
    """The process ended while it was needed."""


class NodeError(Exception):
    """What a call of BullMQ threw. ``code`` is BullMQ's own (a.9 in the reference), where it has one."""

    def __init__(self, name: str, message: str, code: int | str | None = None) -> None:
        super().__init__(message)
        self.name = name
        self.message = message
        self.code = code

    def __repr__(self) -> str:
        return f"NodeError({self.name}: {self.message}, code={self.code})"


def find_node() -> str:
    """The path of ``node``, when it and the right BullMQ are installed."""
    node = shutil.which("node")
    if node is None:
        raise OracleMissing("no `node` on the path: the conformance tests need Node.js 18 or newer")
    package = NODE / "node_modules" / "bullmq" / "package.json"
    if not package.exists():
        raise OracleMissing("BullMQ is not installed: run `npm ci` in tests/conformance/node")
    version = json.loads(package.read_text())["version"]
    if version != BULLMQ:
        raise OracleMissing(
            f"BullMQ {version} is installed, {BULLMQ} is needed: run `npm ci` in tests/conformance/node"
        )
    return node


class NodeOracle:
    """The process. Calls may be made at the same time: they are done in the order they were made."""

    def __init__(self) -> None:
        self.process_id = 0
        self.ended_with: int | None = None
        self._process: Process | None = None
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._numbers = count(1)
        self._said: deque[str] = deque(maxlen=50)
        self._readers: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        node = find_node()
        self._process = await asyncio.create_subprocess_exec(
            node, str(NODE / "oracle.mjs"), stdin=PIPE, stdout=PIPE, stderr=PIPE, limit=_LONGEST_LINE
        )
        self.process_id = self._process.pid
        self._readers = [asyncio.create_task(self._read()), asyncio.create_task(self._listen())]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End the process: it closes its connections and leaves when its input ends."""
        process, self._process = self._process, None
        if process is None:
            return
        self.process_id = 0
        assert process.stdin is not None
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), _CLOSING_TAKES)
        except TimeoutError:
            process.kill()
            await process.wait()
        await asyncio.gather(*self._readers)
        self.ended_with = process.returncode

    async def call(self, op: str, **args: Any) -> Any:
        """Do one operation; its result. What BullMQ throws is raised as :class:`NodeError`."""
        if self._process is None or self._process.returncode is not None:
            raise OracleDied(self._last_words())
        assert self._process.stdin is not None
        number = next(self._numbers)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        line = json.dumps({"id": number, "op": op, **args}, separators=(",", ":"))
        try:
            self._process.stdin.write(line.encode() + b"\n")
            with suppress(ConnectionError):  # the reader of answers says it better
                await self._process.stdin.drain()
            return await answer
        finally:
            self._asked.pop(number, None)

    async def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            said = json.loads(line)
            answer = self._asked.get(said["id"])
            if answer is None or answer.done():
                continue  # whoever asked has given up
            if "error" in said:
                answer.set_exception(NodeError(**said["error"]))
            else:
                answer.set_result(said["ok"])
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(OracleDied(self._last_words()))

    async def _listen(self) -> None:
        assert self._process is not None
        assert self._process.stderr is not None
        while line := await self._process.stderr.readline():
            self._said.append(line.decode(errors="replace").rstrip())

    def _last_words(self) -> str:
        return "\n".join(["the Node process is gone; the last it said:", *self._said])
