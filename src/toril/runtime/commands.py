"""Commands, executed in process or sent through a queue.

A :class:`CommandDispatcher` is one command of a pipeline. ``execute`` decides and stores at once; ``send``
puts the command on the queue ``{<pipeline>/command/<name>}``, which Node's BullMQ can share, and a
:meth:`worker <CommandDispatcher.worker>` executes it. Without a connection, sent commands are executed in
this process by the same rules.
"""

from __future__ import annotations

import hashlib
import math
import random
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, Self, TypedDict, TypeVar, Unpack

import msgspec

from toril import codec
from toril.aggregate import check_tenant
from toril.connection import Connection, Durability, DurabilityNotReached, load_script
from toril.connection.durability import Level
from toril.errors import InvalidValue, TorilError
from toril.events import (
    Appended,
    Command,
    CommandHandler,
    ConfigurationError,
    EventStore,
    SnapshotStore,
    execute,
    execute_many,
    is_retryable,
    new_event_id,
    retry_after,
)
from toril.events.stores import check_idempotency_key
from toril.keyspace import QueueName, make_queue_name
from toril.queue import (
    Backoff,
    DelayedError,
    Job,
    JobOptions,
    KeepJobs,
    Limiter,
    Queue,
    UnrecoverableError,
    Worker,
)
from toril.queue.job import JobData
from toril.queue.options import Milliseconds, milliseconds
from toril.queue.outcomes import Delayed, Retried, backoff_delay, failed
from toril.queue.queue import BULK_BYTES, BULK_JOBS
from toril.queue.store import Clock, wall_clock
from toril.runtime.inline import InlineQueue, InlineWorker, Verdict
from toril.runtime.job_ids import job_id_of

if TYPE_CHECKING:  # it needs OpenTelemetry, which is an extra
    from toril.queue.telemetry import Telemetry

Payload = TypeVar("Payload")

SEND = load_script("queue/send")

CONCURRENCY = 10
"""How many sent commands a worker executes at once, where the handler does not say."""

MAX_STALLED = 10
"""How often a command may lose its worker before it has failed: it may be what kills them."""

MAX_WAIT = 10
"""A command that is sent again and again waits this many times its delay at most, by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandOptions:
    """How sent commands are tried, kept and debounced. Times are milliseconds, or timedeltas."""

    attempts: int = 5
    """How often a command is tried in all."""
    backoff: Backoff = Backoff("exponential", 1000, jitter=0.5)  # noqa: RUF009 - it is frozen
    """How long it waits between attempts: 1, 2, 4, 8 … seconds, half of it by chance."""
    max_wait: Milliseconds | None = None
    """How long sends under one id can put a command off, from the first on: ten times its delay."""
    remove_on_complete: bool | int | KeepJobs = KeepJobs(count=1000)  # noqa: RUF009 - it is frozen
    """Which completed jobs are kept: the last thousand."""
    remove_on_fail: bool | int | KeepJobs = False
    """Which failed jobs are removed: none, they wait for a person."""
    durability: Durability | Level | None = None
    """How safe a command must be when ``send`` returns, and its events when it has been executed."""

    def __post_init__(self) -> None:
        if type(self.attempts) is not int or self.attempts < 1:
            raise InvalidValue("attempts", self.attempts, "a whole number from 1")
        if not isinstance(self.backoff, Backoff) or self.backoff.type not in ("fixed", "exponential"):
            raise InvalidValue("backoff", self.backoff, "a Backoff, fixed or exponential")
        if self.max_wait is not None:
            milliseconds("max_wait", self.max_wait)
        if self.durability is not None:
            Durability.of(self.durability)
        self.job_options()

    def job_options(self, delay: int = 0, telemetry: str | None = None) -> JobOptions:
        """As the queue wants them."""
        return JobOptions(
            attempts=self.attempts,
            backoff=self.backoff,
            delay=delay or None,
            remove_on_complete=self.remove_on_complete,
            remove_on_fail=self.remove_on_fail,
            telemetry=telemetry,
        )


class Sent(NamedTuple):
    """A command that was accepted."""

    job_id: str
    """The job that carries it. Another send under the same id may take it over."""
    send_id: str
    """This send, and no other: what its events are stored under, once, however often the job runs."""


class SendFailed(TorilError):
    """Some of many commands were sent, in order, before this: ``sent`` are those."""

    def __init__(self, sent: Sequence[Sent], total: int, problem: Exception) -> None:
        super().__init__(f"{len(sent)} of {total} commands were sent, in order, before this: {problem}")
        self.sent = sent


class CommandJob(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a job of a command queue carries, as JSON. A sender in Node needs ``tenant`` and ``payload``."""

    tenant: str
    payload: Any
    send: str = ""
    """The send's id; where there is none, the job's id and timestamp stand for it."""
    key: str | None = None
    """The idempotency key that the sender chose."""
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)


class WorkerSettings(TypedDict, total=False):
    """What a command's worker can be told (see :class:`toril.queue.Worker`)."""

    concurrency: int
    worker_name: str
    lock_duration: Milliseconds
    stalled_interval: Milliseconds
    max_stalled_count: int
    limiter: Limiter | None
    metrics_points: int | None
    drain_delay: float
    grace: float


class CommandWorker(Protocol):
    """What executes sent commands: a :class:`toril.queue.Worker`, or its like in this process."""

    async def start(self) -> None:
        """Begin to work. Returns at once."""
        ...

    async def run(self) -> None:
        """Return when it is closed."""
        ...

    async def close(self) -> None:
        """Take no more commands, and end what is under way."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class _Checked(NamedTuple, Generic[Payload]):
    """A command that may be sent."""

    data: Payload
    job_id: str | None
    send_id: str
    raw: bytes
    """As its job has it."""


class CommandDispatcher(Generic[Payload]):
    """One command of a pipeline.

    ::

        record_span = CommandDispatcher(
            RecordSpan, pipeline="span_ingestion", aggregate_type="span", store=store, redis=redis
        )
        await record_span.execute(span, tenant="acme")  # now, here
        await record_span.send(span, tenant="acme")  # on the queue {span_ingestion/command/record_span}
        async with record_span.worker():  # what executes it, in any process
            ...

    The connection and the store are the caller's to close. Without ``redis``, sent commands are executed in
    this process, from the first send on, and :meth:`close` waits for them.
    """

    def __init__(
        self,
        handler: type[CommandHandler[Payload]],
        *,
        pipeline: str,
        aggregate_type: str,
        store: EventStore,
        redis: Connection | None = None,
        options: CommandOptions | None = None,
        snapshots: SnapshotStore | None = None,
        telemetry: Telemetry | None = None,
        prefix: str = "bull",
        clock: Clock = wall_clock,
    ) -> None:
        if not (isinstance(handler, type) and issubclass(handler, CommandHandler)):
            raise ConfigurationError(f"{handler!r} must be a class that extends CommandHandler")
        try:
            self.handler = handler()
        except TypeError as problem:
            raise ConfigurationError(
                f"{handler.__name__} must be made without arguments: {problem}"
            ) from None
        self.name = handler.dispatcher_name
        self.pipeline = pipeline
        self.aggregate_type = aggregate_type
        self.options = options or CommandOptions()
        self.queue_name: QueueName = make_queue_name(f"{pipeline}/command/{self.name}")
        """The queue of sent commands: ``{span_ingestion/command/record_span}``."""
        self.delay = milliseconds("delay", handler.delay or 0)
        """How long a sent command waits, in ms."""
        most = self.options.max_wait
        self.max_wait = self.delay * MAX_WAIT if most is None else milliseconds("max_wait", most)
        """How long it waits at most when it is sent again and again, in ms."""
        if self.max_wait < self.delay:
            raise InvalidValue("max_wait", most, f"it must not be less than the delay, {self.delay} ms")
        self._store = store
        self._snapshots = snapshots
        self._redis = redis
        self._telemetry = telemetry
        self._clock = clock
        self._prefix = prefix
        self._announced = False
        self._plain = self._stored_options(None)
        self.queue: Queue | None = None
        """The queue, to look at; None in this process."""
        self.inline: InlineQueue[_Inline] | None = None
        """What executes sent commands in this process; None where a queue on Redis is used."""
        if redis is not None:
            self.queue = Queue(self.queue_name, redis, prefix=prefix, clock=clock)
        else:
            self.inline = InlineQueue(
                self.queue_name,
                self._run_inline,
                self._judge,
                concurrency=handler.concurrency or CONCURRENCY,
                delay=self.delay / 1000,
                max_wait=self.max_wait / 1000,
            )

    def __repr__(self) -> str:
        return f"CommandDispatcher({self.queue_name!r})"

    # ------------------------------------------------------------------ in process

    async def execute(
        self,
        payload: Payload | Mapping[str, Any],
        *,
        tenant: str,
        idempotency_key: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        durability: Durability | Level | None = None,
    ) -> Appended | None:
        """Decide on the command and store its events, now; None where nothing happens.

        Where the handler decides on a state, no other command for the aggregate comes between its reading and
        its storing: else it is decided again, a few times. With a known ``idempotency_key``, the first answer
        is given.
        """
        command = self.handler.command(tenant, self.aggregate_type, payload, metadata=metadata)
        return await execute(
            self.handler,
            self._store,
            command,
            idempotency_key=idempotency_key or self.handler.make_idempotency_key(tenant, command.data),
            durability=self.options.durability if durability is None else durability,
            snapshots=self._snapshots,
        )

    async def execute_many(
        self,
        payloads: Sequence[Payload | Mapping[str, Any]],
        *,
        tenant: str,
        metadata: Mapping[str, Any] | None = None,
        durability: Durability | Level | None = None,
    ) -> list[Appended | Exception | None]:
        """Decide on many commands and store their events in one go.

        Each is by itself: for each, what :meth:`execute` would have returned or raised. For handlers that
        decide on no state.
        """
        check_tenant(tenant)
        outcomes: list[Appended | Exception | None] = [None] * len(payloads)
        places: list[int] = []
        commands: list[tuple[Command[Payload], str | None]] = []
        for place, payload in enumerate(payloads):
            try:
                command = self.handler.command(tenant, self.aggregate_type, payload, metadata=metadata)
                key = self.handler.make_idempotency_key(tenant, command.data)
            except Exception as problem:  # noqa: BLE001 - it is the outcome of this command
                outcomes[place] = problem
                continue
            places.append(place)
            commands.append((command, key))
        done = await execute_many(
            self.handler,
            self._store,
            commands,
            durability=self.options.durability if durability is None else durability,
        )
        for place, outcome in zip(places, done, strict=True):
            outcomes[place] = outcome
        return outcomes

    # ------------------------------------------------------------------ sending

    async def send(
        self,
        payload: Payload | Mapping[str, Any],
        *,
        tenant: str,
        idempotency_key: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        durability: Durability | Level | None = None,
    ) -> Sent:
        """Let a worker execute the command. It is checked here, before it is sent.

        Commands with one id (``make_job_id``) stand for one another. While one waits, the last payload
        counts, and its delay starts again, up to ``max_wait``. While one is executed, one more run follows,
        with the last payload. When it has finished, it runs again.
        """
        checked = [self._check(payload, tenant, idempotency_key, metadata)]
        return (await self._send(checked, self._durability(durability)))[0]

    async def send_many(
        self,
        payloads: Iterable[Payload | Mapping[str, Any]],
        *,
        tenant: str,
        metadata: Mapping[str, Any] | None = None,
        durability: Durability | Level | None = None,
    ) -> list[Sent]:
        """Send commands, in order. All are checked before the first is sent.

        Up to 200 commands and 1 MiB are one call: all or nothing. More are sent in such parts; when a later
        part fails, :class:`SendFailed` says what was sent.
        """
        if isinstance(payloads, Mapping) or not isinstance(payloads, Iterable):
            raise InvalidValue("payloads", payloads, "they must be a list of payloads")
        checked = [self._check(payload, tenant, None, metadata) for payload in payloads]
        level = self._durability(durability)
        sent: list[Sent] = []
        for part in _parts(checked):
            try:
                sent += await self._send(part, level)
            except Exception as problem:
                if isinstance(problem, DurabilityNotReached):  # these are sent, too
                    ids: Any = problem.result
                    sent += _sent(ids, part)
                if not sent or len(checked) == len(part):
                    raise
                raise SendFailed(sent, len(checked), problem) from problem
        return sent

    def _durability(self, given: Durability | Level | None) -> Durability:
        return Durability.of(given or self.options.durability or "memory")

    def _check(
        self, payload: Any, tenant: str, idempotency_key: str | None, metadata: Mapping[str, Any] | None
    ) -> _Checked[Payload]:
        if idempotency_key is not None:
            check_idempotency_key(idempotency_key)
        command = self.handler.command(tenant, self.aggregate_type, payload, metadata=metadata)
        data = command.data
        key = self.handler.make_job_id(data)
        plain: Any = data
        if hasattr(plain, "model_dump"):  # pydantic, which msgspec does not know
            plain = plain.model_dump(mode="json")
        job = CommandJob(tenant, plain, new_event_id(), idempotency_key, dict(command.metadata))
        job_id = None if key is None else job_id_of(tenant, key)
        return _Checked(data, job_id, job.send, codec.encode("payload", job))

    async def _send(self, commands: Sequence[_Checked[Payload]], durability: Durability) -> list[Sent]:
        if self._telemetry is None:
            return await self._put(commands, durability, None)
        names = [self.name] * len(commands)
        with self._telemetry.adding(self.queue_name, names) as (span, context):
            if len(commands) == 1:
                span.set_attributes(dict(self.handler.span_attributes(commands[0].data)))
            sent = await self._put(commands, durability, context)
            if len(sent) == 1:
                self._telemetry.added(span, sent[0].job_id)
        return sent

    async def _put(
        self, commands: Sequence[_Checked[Payload]], durability: Durability, context: str | None
    ) -> list[Sent]:
        if self._redis is None or self.queue is None:
            assert self.inline is not None
            self.inline.check_open()
            return [
                Sent(self.inline.send(command.job_id, _Inline(command.raw, context)), command.send_id)
                for command in commands
            ]
        if not self._announced:
            await self.queue.announce()
            self._announced = True
        options = self._plain if context is None else self._stored_options(context)
        args: list[Any] = [self._clock(), self.name, options, self.delay, self.max_wait]
        for command in commands:
            args += (command.job_id or "", command.raw)
        # To send twice what may have been sent is harmless: the events of one send are stored once.
        found = await self._redis.run(SEND, self.queue.keys, *args, durability=durability, repeatable=True)
        return _sent(found, commands)

    def _stored_options(self, context: str | None) -> bytes:
        return codec.encode("options", self.options.job_options(self.delay, context).stored())

    # ------------------------------------------------------------------ executing what was sent

    def worker(self, **settings: Unpack[WorkerSettings]) -> CommandWorker:
        """What executes sent commands, to be started: as many as you like, in any process.

        It executes as many at once as the handler says (else 10). A command whose worker is lost more than
        ten times has failed. Without a connection, what was sent is executed in this process anyhow, and
        closing this waits for it.
        """
        if self._redis is None:
            assert self.inline is not None
            return InlineWorker(self.inline)
        given: WorkerSettings = {
            "concurrency": self.handler.concurrency or CONCURRENCY,
            "max_stalled_count": MAX_STALLED,
            **settings,
        }
        worker = Worker(
            self.queue_name,
            self._redis,
            prefix=self._prefix,
            telemetry=self._telemetry,
            clock=self._clock,
            **given,
        )
        worker.handler(self.name)(self.run_job)
        return worker

    async def close(self) -> None:
        """Execute what was sent and waits in this process; the queue on Redis needs no closing."""
        if self.inline is not None:
            await self.inline.close()

    async def run_job(self, job: Job) -> dict[str, Any] | None:
        """Execute the command in a job: what a worker's handler does."""
        try:
            return await self._run_job(job)
        except Exception as problem:
            if not is_retryable(problem):
                raise UnrecoverableError(str(problem)) from problem
            await _wait_as_asked(job, problem)
            raise

    async def _run_job(self, job: JobData) -> dict[str, Any] | None:
        try:
            sent = msgspec.convert(job.data, CommandJob)
        except msgspec.ValidationError as problem:
            raise InvalidValue("job", job.id, f"it is no command: {problem}") from None
        check_tenant(sent.tenant)
        command = self.handler.command(sent.tenant, self.aggregate_type, sent.payload, metadata=sent.metadata)
        if self._telemetry is not None:
            self._telemetry.note(self.handler.span_attributes(command.data))
        done = await execute(
            self.handler,
            self._store,
            command,
            idempotency_key=(
                sent.key
                or self.handler.make_idempotency_key(sent.tenant, command.data)
                or self._key_of(job, sent)
            ),
            durability=self.options.durability,
            snapshots=self._snapshots,
        )
        return None if done is None else {"version": done.last_version, "repeated": done.repeated}

    def _key_of(self, job: JobData, sent: CommandJob) -> str:
        """One for all runs of one send. Another send under the job's id has another one."""
        if sent.send:
            return f"sent:{sent.send}"
        added = f"{self.queue_name}\n{job.id}\n{job.timestamp}"
        return f"job:{hashlib.sha256(added.encode()).hexdigest()}"

    # ------------------------------------------------------------------ executing in this process

    async def _run_inline(self, job_id: str, work: _Inline, attempts: int) -> None:
        fields = {b"name": self.name.encode(), b"data": work.raw, b"atm": b"%d" % attempts}
        if work.context is not None:
            fields[b"opts"] = codec.encode("options", {"tm": work.context})
        job = JobData(job_id, fields)
        if self._telemetry is None:
            await self._run_job(job)
            return
        with self._telemetry.processing(self.queue_name, job):
            await self._run_job(job)

    def _judge(self, problem: BaseException, attempts: int) -> Verdict:
        if (
            attempts >= self.options.attempts
            or isinstance(problem, UnrecoverableError)
            or not is_retryable(problem)
        ):
            return Verdict(None)
        raw = codec.encode("options", {"backoff": self.options.backoff.stored()})
        job = JobData("", {b"opts": raw, b"atm": b"%d" % (attempts - 1)})
        wait = backoff_delay(job, problem, None, random.random) / 1000
        return Verdict(max(wait, retry_after(problem) or 0.0))


class _Inline(NamedTuple):
    """A command in this process, in the form that a job has it."""

    raw: bytes
    context: str | None


async def _wait_as_asked(job: Job, problem: Exception) -> None:
    """Where an error says how long to wait, let the next attempt begin no sooner."""
    seconds = retry_after(problem)
    if not seconds:
        return
    outcome = failed(job, problem, "".join(traceback.format_exception(problem)))
    if not isinstance(outcome, Delayed | Retried):
        return
    wait = math.ceil(seconds * 1000)
    if isinstance(outcome, Delayed):
        wait = max(wait, outcome.delay)
    later = Delayed(job.id, job.token, wait, reason=outcome.reason, stack_traces=outcome.stack_traces)
    try:
        await job.store.give_up(later)
    except TorilError:
        return  # then its worker gives it up, and says why where that is refused
    raise DelayedError from problem


def _parts(commands: Sequence[_Checked[Payload]]) -> Iterable[list[_Checked[Payload]]]:
    """Commands in parts that one call may send."""
    part: list[_Checked[Payload]] = []
    size = 0
    for command in commands:
        if part and (len(part) == BULK_JOBS or size + len(command.raw) > BULK_BYTES):
            yield part
            part, size = [], 0
        part.append(command)
        size += len(command.raw)
    if part:
        yield part


def _sent(ids: Sequence[bytes], commands: Sequence[_Checked[Any]]) -> list[Sent]:
    return [Sent(job_id.decode(), command.send_id) for job_id, command in zip(ids, commands, strict=True)]
