"""HTTP/1.1 as uvicorn has it, with an end to what comes before and after a body."""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

LONGEST_HEAD = 64 * 1024
"""Bytes of a request's head, or of what follows its body. What was read together may pass it."""


class BoundedHttp(HttpToolsProtocol):
    """Refuses heads that do not end.

    The parser keeps what it was given of a header, and copies it each time there is more: a header without
    an end would take all memory, and all time before that. Bodies have limits of their own.
    """

    _unread = 0
    """Bytes that came since the last head, body or request was done with."""

    def data_received(self, data: bytes) -> None:
        """As it is called when something has come."""
        self._unread += len(data)
        if self._unread > LONGEST_HEAD + len(data):
            self.send_400_response("The head of the request is too large.")
            return
        super().data_received(data)

    def on_headers_complete(self) -> None:
        """As the parser calls it."""
        self._unread = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """As the parser calls it."""
        self._unread = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """As the parser calls it."""
        self._unread = 0
        super().on_message_complete()
