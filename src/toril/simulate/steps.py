"""The steps of which simulated traces are made: calls of models, tools, look-ups, and what holds them."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from toril.simulate.dialects import DIALECT_WEIGHTS, DIALECTS, Call, Dialect, Person, Step, StepKind
from toril.simulate.facts import (
    EMBEDDER,
    FAILURES,
    MODEL_WEIGHTS,
    MODELS,
    QUESTIONS,
    RERANKER,
    SENTENCES,
    SYSTEM,
    TOOL_FAILURES,
    TOOL_TIMEOUT,
    TOOLS,
    TOPICS,
    Model,
)
from toril.simulate.plans import SECOND, Attributes, EventPlan, SpanKind, SpanPlan

Failure = tuple[str, str, float]
RATE_LIMITED: Failure = FAILURES[0]


@dataclass(slots=True)
class Making:
    """A span that is not finished. Times are from the start of its trace."""

    span_id: int
    parent: Making | None
    service: str
    start: int
    end: int = 0
    name: str = ""
    kind: SpanKind = "internal"
    scope: str = ""
    attributes: Attributes = field(default_factory=dict)
    events: list[tuple[str, int, Attributes]] = field(default_factory=list)
    links: list[tuple[int, int]] = field(default_factory=list)
    error: str | None = None
    ok: bool = False

    def fails(self, failure: Failure) -> None:
        """It ends with an error, and with the event that says so."""
        kind, message, _ = failure
        self.error = message
        self.attributes["error.type"] = kind
        trace = f'Traceback (most recent call last):\n  File "app.py", line 71, in run\n{kind}: {message}\n'
        said: Attributes = {"exception.type": kind, "exception.message": message}
        self.events.append(("exception", self.end, said | {"exception.stacktrace": trace}))


class Draft:
    """A trace that is being thought up, by one chance."""

    def __init__(self, rng: random.Random, person: Person, largest: int) -> None:
        self.rng = rng
        self.person = person
        self.largest = largest
        """About how many spans the largest traces have."""
        self.dialect: Dialect = rng.choices(list(DIALECTS.values()), DIALECT_WEIGHTS)[0]
        self.topic = rng.choice(TOPICS)
        self.model: Model = rng.choices(MODELS, MODEL_WEIGHTS)[0]
        self.tells_cost = rng.random() < 0.25
        self.spans: list[Making] = []

    # What people and models say.

    def question(self) -> str:
        """What somebody asks."""
        return self.rng.choice(QUESTIONS).format(topic=self.topic)

    def prose(self, least: int = 1, most: int = 6) -> str:
        """So many sentences."""
        chosen = self.rng.choices(SENTENCES, k=self.rng.randint(least, most))
        return " ".join(chosen).format(topic=self.topic)

    def seconds(self, middle: float, spread: float = 0.6) -> int:
        """A length of time as they are in life: mostly about so long, now and then much longer."""
        return max(1_000, round(self.rng.lognormvariate(0, spread) * middle * SECOND))

    # Spans.

    def open(self, parent: Making | None, at: int, service: str) -> Making:
        """A span that begins now."""
        made = Making(self.rng.getrandbits(64) or 1, parent, service, at, scope=self.dialect.scope)
        self.spans.append(made)
        return made

    def close(self, made: Making, end: int, kind: StepKind, name: str, given: str, **more: Any) -> Making:
        """It ends, and says what it was."""
        made.end = end
        made.name, said = self.dialect.step(Step(kind, name, given, more.pop("output", None), **more))
        made.attributes |= said
        return made

    def request(self, at: int, path: str, service: str = "web-frontend") -> Making:
        """The web request from which a trace comes."""
        made = self.open(None, at, service)
        made.name, made.kind, made.scope = f"POST {path}", "server", "opentelemetry.instrumentation.http"
        made.attributes |= {"http.request.method": "POST", "url.path": path, "http.route": path}
        return made

    def answer(self, made: Making, end: int, status: int) -> None:
        """The web request is answered."""
        made.end = end
        made.attributes["http.response.status_code"] = status
        if status >= 500:
            made.error = "Internal Server Error"
            made.attributes["error.type"] = str(status)
        else:
            made.ok = True

    def call(
        self,
        parent: Making | None,
        at: int,
        service: str,
        *,
        question: str,
        before: list[dict[str, str]] | None = None,
        context: int = 0,
        fails: Failure | None = None,
    ) -> Making:
        """A call of a model. ``context``: so many tokens of documents are in the prompt."""
        rng, model = self.rng, self.model
        messages = [
            {"role": "system", "content": SYSTEM},
            *(before or ()),
            {"role": "user", "content": question},
        ]
        prompt = sum(len(message["content"]) for message in messages) // 4 + context
        reply = None if fails else self.prose(1, 8)
        reasoning = rng.randrange(0, 2_000, 64) if model.reasons and reply else 0
        written = len(reply) // 4 + rng.randrange(20) + reasoning if reply else 0
        cached = prompt // 2 // 128 * 128 if rng.random() < 0.3 else 0
        made = self.open(parent, at, service)
        made.kind = "client"
        first = self.seconds(model.first_token, 0.4)
        made.end = at + (self.seconds(fails[2]) if fails else first + round(written / model.speed * SECOND))
        streamed = reply is not None and rng.random() < 0.6
        cost = (prompt - cached // 2) * model.input_price + written * model.output_price
        call = Call(
            model,
            messages,
            reply,
            prompt,
            written,
            cached,
            reasoning,
            first_token=first if streamed else None,
            cost=cost if reply and self.tells_cost else None,
        )
        made.name, said = self.dialect.call(call)
        made.attributes |= said
        if streamed:
            made.events.append((self.dialect.first_token, at + first, {}))
        if fails:
            made.fails(fails)
        return made

    def persistent_call(self, parent: Making, at: int, service: str, **how: Any) -> Making:
        """A call that is made again, after a while, when the provider says that it was too much."""
        made: Making | None = None
        wait = 0.5
        while self.rng.random() < 0.12:
            made = self.call(parent, at, service, fails=RATE_LIMITED, **how)
            made.attributes["http.request.resend_count"] = round(wait / 0.5) - 1
            at = made.end + self.seconds(wait, 0.1)
            wait *= 2
        return self.call(parent, at, service, **how)

    def tool(self, parent: Making, at: int, service: str) -> Making:
        """A tool that a model has asked for. Now and then it fails."""
        name = self.rng.choice(list(TOOLS))
        given, found = (one.format(topic=self.topic, n=self.rng.randrange(10)) for one in TOOLS[name])
        failure = TOOL_FAILURES.get(name, TOOL_TIMEOUT) if self.rng.random() < 0.06 else None
        made = self.open(parent, at, service)
        end = at + self.seconds(failure[2] if failure else 0.25, 0.9)
        self.close(made, end, "tool", name, given, output=None if failure else found)
        if failure:
            made.fails(failure)
        return made

    def embedding(self, parent: Making, at: int, service: str, given: str, tokens: int) -> Making:
        """Text becomes a vector."""
        made = self.open(parent, at, service)
        made.kind = "client"
        end = at + self.seconds(0.08)
        return self.close(made, end, "embedding", "embed", given, model=EMBEDDER, tokens=tokens)

    def retrieval(self, parent: Making, at: int, given: str) -> Making:
        """Documents are looked up, by a service of its own."""
        made = self.open(parent, at, "retriever")
        embedded = self.embedding(made, at + self.seconds(0.002), "retriever", given, len(given) // 4)
        documents = tuple(self.prose(2, 5) for _ in range(self.rng.randint(2, 5)))
        end = embedded.end + self.seconds(0.06)
        output = f"{len(documents)} documents"
        return self.close(made, end, "retrieval", "docs_index", given, documents=documents, output=output)

    def rerank(self, parent: Making, at: int, given: str) -> Making:
        """The documents that matter come first."""
        made = self.open(parent, at, "retriever")
        made.kind = "client"
        return self.close(made, at + self.seconds(0.15), "rerank", "rerank", given, model=RERANKER)

    def check(self, parent: Making, at: int, service: str, kind: StepKind, name: str, given: str) -> Making:
        """A guardrail or an evaluation: whether it passed, and why."""
        made = self.open(parent, at, service)
        score = round(self.rng.betavariate(8, 1.5), 3)
        output = f"passed={score > 0.5}, score={score}"
        return self.close(made, at + self.seconds(0.12), kind, name, given, output=output)

    # The whole.

    def finished(self, shift: int) -> list[SpanPlan]:
        """The spans, with the whole trace moved in time."""
        for made in self.spans:
            # The instrumentation of the web knows nothing of conversations.
            if made.scope == self.dialect.scope and (made.parent is None or made.parent.scope != made.scope):
                made.attributes |= self.dialect.person(self.person)
        return [
            SpanPlan(
                made.span_id,
                None if made.parent is None else made.parent.span_id,
                made.parent is not None and made.parent.service != made.service,
                made.name,
                made.kind,
                made.service,
                made.scope,
                made.start + shift,
                made.end + shift,
                made.attributes,
                tuple(EventPlan(name, time + shift, said) for name, time, said in made.events),
                tuple(made.links),
                made.error,
                made.ok,
            )
            for made in self.spans
        ]
