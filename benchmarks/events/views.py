"""The aggregate, the projection and its table, as the library ``eventsourcing`` wants them declared.

Imported where it is installed.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any
from uuid import UUID, uuid5

from .load import EVENTS_EACH, expected, numbers, span

application: Any = import_module("eventsourcing.application")
domain: Any = import_module("eventsourcing.domain")
persistence: Any = import_module("eventsourcing.persistence")
projection: Any = import_module("eventsourcing.projection")
postgres: Any = import_module("eventsourcing.postgres")
sqlite: Any = import_module("eventsourcing.sqlite")

LONGEST_WAIT = 60.0
BULK = 500
NAMESPACE = UUID(int=0)


class Trace(domain.Aggregate):  # type: ignore[misc]
    """Each call of a method is an event."""

    @domain.event("Recorded")  # type: ignore[untyped-decorator]
    def __init__(self, number: int, cost: int, start: int, end: int, model: str) -> None:
        self.number, self.first = number, (cost, start, end, model)

    @domain.event("Added")  # type: ignore[untyped-decorator]
    def add(self, cost: int, start: int, end: int, model: str) -> None:
        pass

    @staticmethod
    def create_id(number: int) -> UUID:
        """The id that belongs to a number."""
        return uuid5(NAMESPACE, str(number))


class Traces(application.Application):  # type: ignore[misc]
    """Where the events are."""

    name = "traces"


class Summaries(projection.Projection):  # type: ignore[misc]
    """What is made of the spans of a trace."""

    name = "summaries"

    def process_event(self, domain_event: Any, tracking: Any) -> None:
        self.view.add([domain_event], tracking)


def _row(event: Any) -> tuple[str, int, int, int]:
    return str(event.originator_id), event.cost, event.start, event.end


class SQLiteView(sqlite.SQLiteTrackingRecorder):  # type: ignore[misc]
    """The table of the states, with the position."""

    upsert = (
        "INSERT INTO summaries VALUES (?, ?, 1, ?, ?) ON CONFLICT (id) DO UPDATE SET "
        "cost = cost + excluded.cost, spans = spans + 1, "
        "started_at = min(started_at, excluded.started_at), ended_at = max(ended_at, excluded.ended_at)"
    )

    def construct_create_table_statements(self) -> list[str]:
        summaries = (
            "CREATE TABLE IF NOT EXISTS summaries (id TEXT PRIMARY KEY, cost INTEGER, spans INTEGER, "
            "started_at INTEGER, ended_at INTEGER) WITHOUT ROWID"
        )
        return [*super().construct_create_table_statements(), summaries]

    def add(self, events: Sequence[Any], tracking: Any) -> None:
        with self.datastore.transaction(commit=True) as cursor:
            if len(events) == 1:
                cursor.execute(self.upsert, _row(events[0]))
            else:
                cursor.executemany(self.upsert, map(_row, events))
            self._insert_tracking(cursor, tracking)

    def look(self, ident: UUID) -> Any:
        with self.datastore.transaction(commit=False) as cursor:
            cursor.execute("SELECT * FROM summaries WHERE id = ?", (str(ident),))
            return cursor.fetchone()

    def forget(self) -> None:
        with self.datastore.transaction(commit=True) as cursor:
            cursor.execute("DELETE FROM summaries", ())
            cursor.execute("DELETE FROM tracking WHERE application_name = 'traces'", ())


class PostgresView(postgres.PostgresTrackingRecorder):  # type: ignore[misc]
    """The same."""

    upsert = (
        "INSERT INTO summaries AS s VALUES (%s, %s, 1, %s, %s) ON CONFLICT (id) DO UPDATE SET "
        "cost = s.cost + excluded.cost, spans = s.spans + 1, "
        "started_at = least(s.started_at, excluded.started_at), "
        "ended_at = greatest(s.ended_at, excluded.ended_at)"
    )

    def __init__(self, datastore: Any, **settings: Any) -> None:
        super().__init__(datastore, **settings)
        self.sql_create_statements.append(
            import_module("psycopg.sql").SQL(
                "CREATE TABLE IF NOT EXISTS summaries (id text PRIMARY KEY, cost bigint, spans bigint, "
                "started_at bigint, ended_at bigint)"
            )
        )

    def add(self, events: Sequence[Any], tracking: Any) -> None:
        with self.datastore.transaction(commit=True) as cursor:
            if len(events) == 1:
                cursor.execute(self.upsert, _row(events[0]), prepare=True)
            else:
                cursor.executemany(self.upsert, list(map(_row, events)))
            self._insert_tracking(cursor, tracking)

    def look(self, ident: UUID) -> Any:
        with self.datastore.transaction(commit=False) as cursor:
            cursor.execute("SELECT * FROM summaries WHERE id = %s", (str(ident),))
            return cursor.fetchone()

    def forget(self) -> None:
        with self.datastore.transaction(commit=True) as cursor:
            cursor.execute("DELETE FROM summaries")
            cursor.execute(f"DELETE FROM {self.tracking_table_name} WHERE application_name = 'traces'")


class Place:
    """The application and the view of it, in one database."""

    def __init__(self, environment: Mapping[str, str], view: type[Any]) -> None:
        self._environment = dict(environment)
        self._view_class = view
        self._app = Traces(env=self._environment)
        factory = persistence.InfrastructureFactory.construct(
            env=import_module("eventsourcing.utils").Environment(Summaries.name, self._environment)
        )
        self._view = factory.tracking_recorder(view)
        self._events = 0

    def fill(self, events: int) -> None:
        """Append the backlog."""
        self._events = events
        traces: dict[int, Any] = {}
        changed: list[Any] = []
        for which, number in numbers(events):
            if which in traces:
                traces[which].add(**span(number))
            else:
                traces[which] = Trace(number=which, **span(number))
            changed.append(traces[which])
            if len(changed) == BULK:
                self._app.save(*changed)
                changed.clear()
        if changed:
            self._app.save(*changed)

    def forget(self) -> None:
        """Begin anew with the view."""
        self._view.forget()

    def follow(self, events: int) -> float:
        """Let the library run the projection, until so many events are in it; how long it took."""
        began = time.perf_counter()
        with projection.ProjectionRunner(
            application_class=Traces,
            projection_class=Summaries,
            view_class=self._view_class,
            env=self._environment,
        ) as runner:
            runner.wait(events, timeout=LONGEST_WAIT)
            return time.perf_counter() - began

    def page_through(self, page: int, events: int) -> None:
        """Read in pages, and process one event after the other."""
        made = Summaries(view=self._view)
        for notifications in self._pages(page, events):
            for notification in notifications:
                event = self._app.mapper.to_domain_event(notification)
                made.process_event(event, persistence.Tracking(Traces.name, notification.id))

    def page_through_together(self, page: int, events: int) -> None:
        """Read in pages, and process each in one transaction."""
        for notifications in self._pages(page, events):
            found = [self._app.mapper.to_domain_event(one) for one in notifications]
            self._view.add(found, persistence.Tracking(Traces.name, notifications[-1].id))

    def _pages(self, page: int, events: int) -> Any:
        at = 0
        while at < events:
            found = self._app.recorder.select_notifications(start=at + 1, limit=min(page, events - at))
            at = found[-1].id
            yield found

    def check(self, events: int) -> None:
        """Whether the first aggregate has the state that so many events give, or more where it ran on."""
        first = self._view.look(Trace.create_id(0))
        spans = len(range(0, events, self._events // EVENTS_EACH))
        if first is None or first["spans"] < spans:
            raise RuntimeError(f"{first and dict(first)} has fewer than {spans} spans")
        if events == self._events:
            found = first["cost"], first["spans"], first["started_at"], first["ended_at"]
            if found != expected(0, events):
                raise RuntimeError(f"the state is {found}, not {expected(0, events)}")


def place(database: str, environment: Mapping[str, str]) -> Place:
    """The library on a database."""
    if database == "PostgreSQL":
        return Place(environment, PostgresView)
    made = Place(environment, SQLiteView)
    # The library has no setting for it. Used by one thread, its pool has one connection for writing.
    for recorder in (made._app.recorder, made._view):
        pool = recorder.datastore.pool
        connection = pool.get_connection(is_writer=True)
        connection.cursor().execute("PRAGMA synchronous=NORMAL", ())
        pool.put_connection(connection)
    return made
