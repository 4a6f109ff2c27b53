"""What happens on the wire under the stock exporter, which says only success or failure."""

from __future__ import annotations

from collections import Counter
from typing import Any

import requests
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

SHOWN = 200


class WatchedSession(requests.Session):
    """A session that remembers how its tries went. For one thread."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: Counter[str] = Counter()
        """Tries by status; ``no answer`` where there was none. Whoever has counted them clears it."""
        self.status: int | None = None
        """Of the last try; None: there was no answer."""
        self.retry_after: float = 0.0
        self.rejected = 0
        """Spans that the last answer says were not taken."""
        self.said = ""
        """Why, in the collector's words."""

    def forget(self) -> None:
        """What the last answer was."""
        self.status, self.retry_after, self.rejected, self.said = None, 0.0, 0, ""

    def request(self, *args: Any, **kwargs: Any) -> requests.Response:
        """Try, and remember."""
        self.forget()
        try:
            response = super().request(*args, **kwargs)
        except requests.RequestException as problem:
            self.answers["no answer"] += 1
            self.said = type(problem).__name__
            raise
        self.answers[str(response.status_code)] += 1
        self.status = response.status_code
        if response.status_code == requests.codes.ok:
            self._read_success(response.content)
        else:
            self.said = " ".join(response.text.split())[:SHOWN] or response.reason
            after = response.headers.get("Retry-After", "")
            self.retry_after = float(after) if after.isdigit() else 0.0
        return response

    def _read_success(self, content: bytes) -> None:
        try:
            partial = ExportTraceServiceResponse.FromString(content).partial_success
        except DecodeError:
            self.said = "the answer is not an ExportTraceServiceResponse"
            self.status = None
            return
        self.rejected, self.said = partial.rejected_spans, partial.error_message[:SHOWN]
