"""A collector that does as it is told, to see what the SDK's exporter and the simulator make of it."""

from __future__ import annotations

import gzip
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

Answer = tuple[int, dict[str, str], bytes]
OK: Answer = (200, {"Content-Type": "application/x-protobuf"}, b"")


@dataclass
class Receiver:
    """Decodes what comes, and answers as it is told; only what it answers with 200 counts as taken."""

    answer: Answer = OK
    first: list[Answer] = field(default_factory=list)
    """The answers before that, each once."""
    requests: list[tuple[str, ExportTraceServiceRequest]] = field(default_factory=list)
    """Taken: by which key, and what."""
    tries: int = 0
    url: str = ""
    lock: Any = field(default_factory=threading.Lock)

    def spans(self, key: str | None = None) -> Counter[tuple[str, str]]:
        """How often each span was taken."""
        return Counter(
            (span.trace_id.hex(), span.span_id.hex())
            for owner, request in self.requests
            if key in (None, owner)
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        )

    @contextmanager
    def open(self, port: int = 0) -> Iterator[Receiver]:
        """Listen until the end."""
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = gzip.decompress(self.rfile.read(int(self.headers["Content-Length"])))
                decoded = ExportTraceServiceRequest.FromString(body)
                with receiver.lock:
                    status, headers, answer = receiver.first.pop(0) if receiver.first else receiver.answer
                    receiver.tries += 1
                    if status == 200:
                        owner = self.headers.get("Authorization", "").removeprefix("Bearer ")
                        receiver.requests.append((owner, decoded))
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *args: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        server.daemon_threads = True
        self.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


def partly(rejected: int, why: str) -> Answer:
    """Taken, but for some."""
    made = ExportTraceServiceResponse()
    made.partial_success.rejected_spans = rejected
    made.partial_success.error_message = why
    return 200, {"Content-Type": "application/x-protobuf"}, made.SerializeToString()
