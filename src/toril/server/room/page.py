"""The waiting page, and the keys that admission tokens are checked with."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from functools import cache
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from toril.room import NoSuchRoom
from toril.room.tokens import AdmissionTokens
from toril.server.refusals import json_response
from toril.server.room.described import endpoint, operation
from toril.server.room.problems import answer_problem
from toril.server.room.rooms import Rooms
from toril.server.room.wire import Keys
from toril.server.routes import Endpoint

SLOT = '<script type="application/json" id="room">{}</script>'
JWKS_FRESH = 300
"""Seconds for which others may keep the keys: a new one is known to all after that."""


class WaitingPage:
    """``GET /queue/{event_id}``: one page, with all that it needs in it."""

    def __init__(self, rooms: Rooms, tokens: AdmissionTokens, *, open_rooms: bool) -> None:
        self._rooms = rooms
        self._tokens = tokens
        self._open = open_rooms

    def pages(self) -> list[Route]:
        """The routes for people."""
        return [Route("/queue/{event_id}", self.show, methods=["GET"])]

    def endpoints(self) -> list[Endpoint]:
        """The routes for programs."""
        return [endpoint("GET", "/.well-known/jwks.json", self.jwks, JWKS)]

    async def show(self, request: Request) -> Response:
        """The page of an event."""
        event = request.path_params["event_id"]
        said = {"event_id": event, "title": "", "target": "", "api": f"{_root(request)}/api/v1"}
        try:
            page = await self._rooms.page(event)
            said |= {"title": page.title, "target": page.target}
        except NoSuchRoom as problem:
            if not self._open:
                return answer_problem(request, problem)
        except Exception as problem:  # noqa: BLE001 - whatever it is, it has an answer
            return answer_problem(request, problem)
        html, policy = _template()
        data = json.dumps(said).replace("<", "\\u003c")  # nothing in it can end the script
        body = html.replace(SLOT, SLOT.replace("{}", data))
        headers = {
            "Cache-Control": "no-store",
            "Content-Security-Policy": policy,
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
        }
        return Response(body, media_type="text/html", headers=headers)

    async def jwks(self, request: Request) -> Response:  # noqa: ARG002 - a route's handle takes it
        """The public keys."""
        headers = {"Cache-Control": f"public, max-age={JWKS_FRESH}"}
        return json_response(self._tokens.jwks(), headers=headers)


@cache
def _template() -> tuple[str, str]:
    """The page, and a policy that lets run what is in it and nothing else."""
    html = (files("toril.server.room") / "page.html").read_text(encoding="utf-8")
    assert SLOT in html
    style = _digests(html, r"<style>(.*?)</style>")
    script = _digests(html, r"<script>(.*?)</script>")
    policy = (
        f"default-src 'none'; style-src {style}; script-src {script}; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
    )
    return html, policy


def _digests(html: str, pattern: str) -> str:
    found = re.findall(pattern, html, re.DOTALL)
    made = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in found]
    return " ".join(f"'sha256-{one}'" for one in made)


def _root(request: Request) -> str:
    root: str = request.scope.get("root_path", "")
    return root.rstrip("/")


JWKS = operation("jwks", "The public keys of admission tokens", Keys)
