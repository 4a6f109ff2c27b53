"""All of it: as routes for the server, and as an application of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from prometheus_client import CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from toril.connection import Connection
from toril.server.openapi import describe
from toril.server.operations import PROMETHEUS, Made, describing
from toril.server.room.admin import Admin
from toril.server.room.described import Door
from toril.server.room.metrics import room_metrics
from toril.server.room.options import RoomOptions
from toril.server.room.page import WaitingPage
from toril.server.room.problems import Problem, RoomProblem, answer_problem
from toril.server.room.queue import Queue
from toril.server.room.rates import Rates
from toril.server.room.rooms import Rooms
from toril.server.room.seats import SeatRoutes
from toril.server.room.wire import schemas
from toril.server.routes import RouteGroup, routed

_CODES = {404: "NOT_FOUND", 405: "METHOD_NOT_ALLOWED"}


class RoomApi:
    """The waiting room over HTTP, on one Redis."""

    def __init__(self, redis: Connection, options: RoomOptions) -> None:
        self.rooms = Rooms(redis, options)
        door = Door(options, Rates(redis))
        page = WaitingPage(self.rooms, options.tokens, open_rooms=options.new_rooms is not None)
        self._group = RouteGroup(
            name="room",
            endpoints=[
                *Queue(self.rooms, redis, options, door).endpoints(),
                *SeatRoutes(self.rooms, redis, options, door).endpoints(),
                *Admin(self.rooms, redis, door).endpoints(),
                *page.endpoints(),
            ],
            schemas=schemas(RoomProblem),
            pages=page.pages(),
            running=self.rooms.running,
            metrics=lambda: room_metrics(self.rooms.kept),
        )

    def group(self) -> RouteGroup:
        """Its routes."""
        return self._group


def create_room_app(redis: Connection, options: RoomOptions) -> Starlette:
    """The waiting room alone, as an ASGI application: to be served, or mounted in another.

    ::

        app = create_room_app(redis, RoomOptions(tokens=tokens))
        site = Starlette(routes=[Mount("/tickets", app)], lifespan=lambda _: app.router.lifespan_context(app))

    An application that mounts it enters its lifespan, as above: it lets people in meanwhile.
    """
    api = RoomApi(redis, options)
    group = api.group()
    document: dict[str, object] = {}
    described = RouteGroup(name="description", endpoints=[describing(document)])
    document |= describe([group, described])

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:  # noqa: ARG001 - Starlette's
        async with api.rooms.running():
            yield

    async def no_route(request: Request, problem: Exception) -> Response:
        assert isinstance(problem, HTTPException)
        code = _CODES.get(problem.status_code, "INVALID_REQUEST")
        found = Problem(problem.status_code, code, problem.detail, headers=problem.headers)
        return answer_problem(request, found)

    async def metrics(request: Request) -> Response:  # noqa: ARG001 - a route's handle takes it
        registry = CollectorRegistry(auto_describe=False)
        registry.register(Made(await room_metrics(api.rooms.kept)))
        return Response(generate_latest(registry), media_type=PROMETHEUS)

    endpoints = [*group.endpoints, *described.endpoints]
    return Starlette(
        routes=[*routed(endpoints), Route("/metrics", metrics), *group.pages],
        lifespan=lifespan,
        exception_handlers={HTTPException: no_route},
    )
