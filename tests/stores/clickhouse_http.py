"""A ClickHouse server for tests: the embedded engine in a process of its own, behind its HTTP interface.

It does what a client of the HTTP interface needs for statements, bound parameters, settings and inserts, in
any format of the engine; errors come with their code. Progress, sessions and compression of answers are left
out. ``python -m tests.stores.clickhouse_http --directory … --port 0`` prints the port that it listens on.
"""

from __future__ import annotations

import argparse
import base64
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.parse import parse_qs, urlsplit

from backports.zstd import ZstdDecompressor
from lz4.frame import LZ4FrameDecompressor  # type: ignore[import-untyped]

from toril.stores.clickhouse import engine

USER, PASSWORD = "toril", "s3cret/pass"
NOT_SETTINGS = {
    "query",
    "database",
    "query_id",
    "session_id",
    "wait_end_of_query",
    "client_protocol_version",
    "send_progress_in_http_headers",
    "http_headers_progress_interval_ms",
    "enable_http_compression",
    "compress",
    "decompress",
    "default_format",
    "user",
    "password",
    "role",
    "quota_key",
    "buffer_size",
}
INSERT = re.compile(rb"\s*INSERT\s+INTO\s.+?\sFORMAT\s+\w+\s", re.IGNORECASE | re.DOTALL)
CODE = re.compile(r"Code: (\d+)")


def quoted(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def unpacked(sent: bytes, decompressor: Callable[[], Any]) -> bytes:
    """A body of as many frames as the client made."""
    parts = []
    while sent:
        frame = decompressor()
        parts.append(frame.decompress(sent))
        assert frame.eof, "the last frame is cut off"
        sent = frame.unused_data or b""
    return b"".join(parts)


class Handler(BaseHTTPRequestHandler):
    """One connection. Every request has a handle of its own on the engine, so that settings end with it."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1
    disable_nagle_algorithm = True
    path_of_engine: str

    def do_GET(self) -> None:
        if urlsplit(self.path).path == "/ping":
            self.answer(200, b"Ok.\n")
        else:
            self.do_POST()

    def do_POST(self) -> None:
        try:
            body = self.body()
        except RuntimeError:  # a client that could not make the rest of it
            self.refuse(400, 432, "The body cannot be unpacked. (UNKNOWN_CODEC)")
            return
        wanted = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        if self.headers.get("Authorization") != wanted:
            self.refuse(403, 516, "Authentication failed. (AUTHENTICATION_FAILED)")
            return
        given = {name: values[-1] for name, values in parse_qs(urlsplit(self.path).query, True).items()}
        statement = given.get("query", "").encode()
        try:
            found, kind = self.ask(statement + (b"\n" if statement and body else b"") + body, given)
        except Exception as problem:  # noqa: BLE001 - whatever the engine says goes to the client
            text = str(problem)
            code = CODE.search(text)
            headers = {"X-ClickHouse-Exception-Code": code[1]} if code else {}
            self.answer(500, text[code.start() if code else 0 :].encode(), headers)
        else:
            self.answer(200, found, {"X-ClickHouse-Format": kind} if kind else {})

    def body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            sent = b"".join(parts)
        else:
            sent = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        match self.headers.get("Content-Encoding"):
            case None:
                return sent
            case "lz4":
                return unpacked(sent, LZ4FrameDecompressor)
            case "zstd":
                return unpacked(sent, ZstdDecompressor)
            case other:
                raise ValueError(f"Content-Encoding {other!r}: this front knows lz4 and zstd")

    def ask(self, statement: bytes, given: dict[str, str]) -> tuple[bytes, str | None]:
        import chdb

        handle: Any = chdb.connect(self.path_of_engine)  # type: ignore[no-untyped-call]
        try:
            if given.get("database"):
                handle.query(f"USE `{given['database']}`")
            params = {}
            for name, value in given.items():
                if name.startswith("param_"):
                    params[name[6:]] = value
                elif name not in NOT_SETTINGS:
                    handle.query(f"SET {name} = {quoted(value)}")
            if insert := INSERT.match(statement):
                return self.insert(handle, insert[0], statement[insert.end() :]), None
            text = statement.decode()
            found = handle.query(text, "TabSeparatedWithNames", params=params).bytes() or b""
            if re.search(r"\bFORMAT\s+\w+\s*$", text, re.IGNORECASE):
                return found, text.split()[-1]
            return found.partition(b"\n")[2], "TabSeparated" if found else None
        finally:
            handle.close()

    def insert(self, handle: Any, statement: bytes, data: bytes) -> bytes:
        into, _, kind = statement.decode().rstrip().rpartition(" FORMAT ")
        with tempfile.NamedTemporaryFile(suffix=".data") as file:
            file.write(data)
            file.flush()
            handle.query(f"{into} FROM INFILE {quoted(file.name)} FORMAT {kind}")
        return b""

    def refuse(self, status: int, code: int, text: str) -> None:
        problem = f"Code: {code}. DB::Exception: {text}"
        self.answer(status, problem.encode(), {"X-ClickHouse-Exception-Code": str(code)})

    def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("X-ClickHouse-Timezone", "UTC")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def log_message(self, *_: Any) -> None:
        """Nothing: tests look at answers."""


class Front(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that was killed is no news."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def main() -> None:
    said = argparse.ArgumentParser()
    said.add_argument("--directory", required=True)
    said.add_argument("--port", type=int, default=0)
    said.add_argument("--until-eof", action="store_true", help="end when standard input ends")
    options = said.parse_args()
    os.environ.setdefault("TZ", "UTC")
    import chdb

    engine.acquire(Path(options.directory))
    keeps_it_open = chdb.connect(options.directory)  # type: ignore[no-untyped-call]
    Handler.path_of_engine = options.directory
    front = Front(("127.0.0.1", options.port), Handler)

    def leave(*_: int | FrameType | None) -> None:
        raise SystemExit

    signal.signal(signal.SIGTERM, leave)
    if options.until_eof:
        threading.Thread(target=_end_with_input, daemon=True).start()
    print(front.server_address[1], flush=True)
    try:
        front.serve_forever()
    finally:
        keeps_it_open.close()


def _end_with_input() -> None:
    """So that nothing outlives tests that were killed."""
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)


class ClickHouseServer:
    """A server that can be killed, and started again with its data and on its port."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = 0
        self._process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        """With user and password, without a database."""
        return f"clickhouse://{USER}:s3cret%2Fpass@127.0.0.1:{self.port}"

    def start(self) -> None:
        root = Path(__file__).parent.parent.parent
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.stores.clickhouse_http", "--until-eof"),
                *(f"--directory={self.directory}", f"--port={self.port}"),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=root,
        )
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        assert said.strip().isdigit(), f"the server did not start: {said!r}"
        self.port = int(said)

    def kill(self) -> None:
        """As a power cut would end it."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            return
        process, self._process = self._process, None
        process.send_signal(how)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            stream.close()


@contextmanager
def clickhouse_server(directory: Path) -> Iterator[ClickHouseServer]:
    """A running server with its data in ``directory``. It is ended afterwards."""
    server = ClickHouseServer(directory)
    server.start()
    try:
        yield server
    finally:
        server.stop()


if __name__ == "__main__":
    main()
