"""What the simulated applications do: each scene is one trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from toril.simulate.facts import AGENTS, FAILURES
from toril.simulate.steps import Draft, Making

Scene = Callable[[Draft], None]
"""Fills a draft."""


def chat(draft: Draft) -> None:
    """Somebody asks in a web page; a guardrail, a look-up and a model later there is an answer."""
    web = draft.request(0, "/api/chat")
    asked, fails = draft.question(), draft.rng.random() < 0.04
    flow = draft.open(web, draft.seconds(0.004), "support-bot")
    guard = draft.check(
        flow, flow.start + draft.seconds(0.001), "support-bot", "guardrail", "jailbreak", asked
    )
    found = draft.retrieval(flow, guard.end + draft.seconds(0.001), asked)
    talk = [
        {"role": "user" if place % 2 == 0 else "assistant", "content": draft.prose(1, 3)}
        for place in range(2 * draft.rng.randrange(4))
    ]
    failure = draft.rng.choice(FAILURES[1:]) if fails else None
    how: dict[str, Any] = {"question": asked, "before": talk, "context": draft.rng.randrange(600, 4_000)}
    if failure:
        reply = draft.call(flow, found.end, "support-bot", fails=failure, **how)
    else:
        reply = draft.persistent_call(flow, found.end, "support-bot", **how)
    end = reply.end + draft.seconds(0.003)
    draft.close(flow, end, "workflow", "answer_question", asked, output=None if fails else draft.prose(1, 3))
    if failure:
        flow.fails(failure)
    draft.answer(web, end + draft.seconds(0.002), 500 if fails else 200)


def agent(draft: Draft) -> None:
    """An agent thinks and uses tools, several times over; now and then it has another agent help it."""
    asked = draft.question()
    top = draft.open(None, 0, "research-agent")
    end = _rounds(draft, top, draft.seconds(0.003), asked, draft.rng.randint(2, 7))
    if draft.rng.random() < 0.3:
        helper = draft.open(top, end, "research-agent")
        end = _rounds(draft, helper, end + draft.seconds(0.002), asked, draft.rng.randint(1, 3))
        draft.close(helper, end, "agent", draft.rng.choice(AGENTS[1:]), asked, output=draft.prose(1, 2))
    last = draft.persistent_call(top, end, "research-agent", question=asked, context=2_000)
    draft.close(top, last.end + draft.seconds(0.002), "agent", AGENTS[0], asked, output=draft.prose(1, 4))
    top.ok = True


def _rounds(draft: Draft, parent: Making, at: int, asked: str, rounds: int) -> int:
    """Think, use tools (at the same time, if there are several), think again; when that ends."""
    context = 0
    for _ in range(rounds):
        thought = draft.persistent_call(parent, at, parent.service, question=asked, context=context)
        tools = [
            draft.tool(parent, thought.end + draft.seconds(0.001), parent.service)
            for _ in range(draft.rng.choices((1, 2, 3), (70, 22, 8))[0])
        ]
        at = max(tool.end for tool in tools) + draft.seconds(0.001)
        context += draft.rng.randrange(150, 900)
    return at


def rag(draft: Draft) -> None:
    """A question to the documentation: look up in several ways at once, rank, answer, and judge."""
    asked = draft.question()
    top = draft.open(None, 0, "docs-search")
    rewritten = draft.call(top, draft.seconds(0.002), "docs-search", question=f"Rewrite as a query: {asked}")
    found = [
        draft.retrieval(top, rewritten.end + draft.seconds(0.001), asked)
        for _ in range(draft.rng.randint(1, 4))
    ]
    ranked = draft.rerank(top, max(one.end for one in found), asked)
    reply = draft.persistent_call(
        top, ranked.end, "docs-search", question=asked, context=draft.rng.randrange(2_000, 12_000)
    )
    judged = draft.check(
        top, reply.end + draft.seconds(0.002), "quality-gate", "evaluation", "faithfulness", asked
    )
    draft.close(top, judged.end, "workflow", "docs_rag", asked, output=draft.prose(1, 5))


def indexing(draft: Draft) -> None:
    """Documents are cut up and embedded, in batches."""
    top = draft.open(None, 0, "indexer")
    top.kind = "consumer"
    at = draft.seconds(0.01)
    batches = draft.rng.randint(3, 12)
    for number in range(batches):
        tokens = draft.rng.randrange(4_000, 8_000)
        made = draft.embedding(
            top, at, "indexer", f"batch {number} of {batches}: {draft.prose(1, 2)}", tokens
        )
        at = made.end + draft.seconds(0.004)
    draft.close(top, at, "task", "index_documents", f"{batches} batches", output="done")


def judging(draft: Draft) -> None:
    """Answers of an earlier trace are judged, which this one is linked to."""
    asked = draft.question()
    top = draft.open(None, 0, "quality-gate")
    top.links.append((draft.rng.getrandbits(128) or 1, draft.rng.getrandbits(64) or 1))
    at = draft.seconds(0.003)
    for name in draft.rng.sample(("toxicity", "faithfulness", "answer_relevancy", "pii", "brevity"), k=3):
        made = draft.check(top, at, "quality-gate", "evaluation", name, asked)
        if draft.rng.random() < 0.7:
            judge = draft.call(made, made.start + draft.seconds(0.001), "quality-gate", question=asked)
            made.end = judge.end + draft.seconds(0.002)
        at = made.end + draft.seconds(0.001)
    draft.close(top, at, "workflow", "evaluate_answer", asked, output="3 evaluations")


def failing(draft: Draft) -> None:
    """An agent that runs into an error, which goes up all the way."""
    web = draft.request(0, "/api/assist")
    asked, failure = draft.question(), draft.rng.choice(FAILURES)
    top = draft.open(web, draft.seconds(0.003), "research-agent")
    at = _rounds(draft, top, top.start + draft.seconds(0.002), asked, draft.rng.randint(0, 2))
    broken = draft.call(top, at, "research-agent", question=asked, fails=failure)
    draft.close(top, broken.end + draft.seconds(0.001), "agent", AGENTS[3], asked)
    top.fails(failure)
    draft.answer(web, top.end + draft.seconds(0.001), 500)


def nightly(draft: Draft) -> None:
    """A run over a whole data set, with as many spans as the largest traces have."""
    top = draft.open(None, 0, "quality-gate")
    rows, at, end = 0, draft.seconds(0.01), 0
    while len(draft.spans) < draft.largest:
        row = draft.open(top, at, "quality-gate")
        asked = draft.question()
        made = draft.call(row, at + draft.seconds(0.001), "quality-gate", question=asked)
        judged = draft.check(row, made.end, "quality-gate", "evaluation", "answer_relevancy", asked)
        draft.close(row, judged.end + draft.seconds(0.001), "task", f"row {rows}", asked, output="judged")
        at, end, rows = at + draft.seconds(0.05), max(end, row.end), rows + 1
    draft.close(top, end, "workflow", "nightly_evaluation", f"{rows} rows", output=f"{rows} rows judged")


SCENES: dict[str, Scene] = {
    "chat": chat,
    "agent": agent,
    "rag": rag,
    "indexing": indexing,
    "judging": judging,
    "failing": failing,
    "nightly": nightly,
}
SCENE_WEIGHTS = (400, 250, 200, 50, 60, 36, 4)
