"""The same step in the words of several instrumentations."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from toril.simulate.facts import Model
from toril.simulate.plans import Attributes

StepKind = Literal[
    "workflow", "agent", "tool", "retrieval", "embedding", "rerank", "guardrail", "evaluation", "task"
]


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a model, as it went."""

    model: Model
    messages: list[dict[str, str]]
    reply: str | None
    """None: it failed."""
    input_tokens: int
    output_tokens: int
    cached: int = 0
    reasoning: int = 0
    first_token: int | None = None
    """Nanoseconds from its start, where the answer is streamed."""
    cost: int | None = None
    """Nano-USD, where the application says it."""


@dataclass(frozen=True, slots=True)
class Step:
    """Any other step."""

    kind: StepKind
    name: str
    input: str
    output: str | None
    documents: tuple[str, ...] = ()
    model: Model | None = None
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Person:
    """Whom a trace is for."""

    user: str
    conversation: str
    customer: str
    label: str


Words = tuple[str, Attributes]
"""The name of a span, and its attributes."""


class Dialect(Protocol):
    """How an instrumentation speaks."""

    scope: str
    first_token: str
    """The name of the event at the first token."""

    def call(self, call: Call) -> Words:
        """A call of a model."""
        ...

    def step(self, step: Step) -> Words:
        """Any other step."""
        ...

    def person(self, person: Person) -> Attributes:
        """Whom it is for."""
        ...


def text(value: Any) -> str:
    """JSON, as instrumentations put it into an attribute."""
    return json.dumps(value, ensure_ascii=False)


def usd(nano: int) -> float:
    """Money as applications send it."""
    return nano / 1_000_000_000


class GenAi:
    """OpenTelemetry's semantic conventions for generative AI."""

    scope = "opentelemetry.instrumentation.openai_v2"
    first_token = "gen_ai.content.completion.chunk"  # noqa: S105

    _operations: dict[StepKind, str] = {  # noqa: RUF012 - a table
        "agent": "invoke_agent",
        "tool": "execute_tool",
        "embedding": "embeddings",
        "workflow": "invoke_workflow",
        "retrieval": "retrieval",
    }

    def call(self, call: Call) -> Words:
        model = call.model
        said: Attributes = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": model.provider,
            "gen_ai.request.model": model.name,
            "gen_ai.request.temperature": 0.2,
            "gen_ai.request.max_tokens": 4096,
            "gen_ai.input.messages": text([_parts(**message) for message in call.messages]),
            "server.address": f"api.{model.provider.removeprefix('gcp.')}.example",
            "server.port": 443,
        }
        if call.reply is not None:
            said |= {
                "gen_ai.response.model": model.answers_as,
                "gen_ai.response.finish_reasons": ["stop"],
                "gen_ai.usage.input_tokens": call.input_tokens,
                "gen_ai.usage.output_tokens": call.output_tokens,
                "gen_ai.usage.cache_read.input_tokens": call.cached,
                "gen_ai.output.messages": text([_parts("assistant", call.reply) | {"finish_reason": "stop"}]),
            }
        if call.reasoning:
            said["gen_ai.usage.reasoning.output_tokens"] = call.reasoning
        if call.first_token is not None:
            said["gen_ai.response.time_to_first_chunk"] = call.first_token / 1_000_000_000
        if call.cost is not None:
            said["gen_ai.usage.cost"] = usd(call.cost)
        return f"chat {model.name}", said

    def step(self, step: Step) -> Words:
        operation = self._operations.get(step.kind)
        if operation is None:  # the conventions have no words for it: others' are borrowed
            return LangWatch().step(step)
        said: Attributes = {"gen_ai.operation.name": operation}
        if step.kind == "agent":
            said |= {"gen_ai.agent.name": step.name, "gen_ai.agent.id": f"agent-{step.name}"}
            said["gen_ai.input.messages"] = text([_parts("user", step.input)])
            if step.output is not None:
                said["gen_ai.output.messages"] = text([_parts("assistant", step.output)])
        elif step.kind == "tool":
            said |= {"gen_ai.tool.name": step.name, "gen_ai.tool.type": "function"}
            said["gen_ai.tool.call.arguments"] = step.input
            if step.output is not None:
                said["gen_ai.tool.call.result"] = step.output
        elif step.kind == "retrieval":
            said |= {"gen_ai.data_source.id": step.name, "gen_ai.retrieval.query.text": step.input}
        elif step.model is not None:
            said |= {"gen_ai.provider.name": step.model.provider, "gen_ai.request.model": step.model.name}
            said |= {"gen_ai.usage.input_tokens": step.tokens, "gen_ai.embeddings.dimension.count": 1536}
        shown = step.model.name if step.model else step.name
        return f"{operation} {shown}", said

    def person(self, person: Person) -> Attributes:
        return {"gen_ai.conversation.id": person.conversation, "enduser.id": person.user}


class OpenInference:
    """Arize's instrumentations."""

    scope = "openinference.instrumentation.langchain"
    first_token = "First Token Stream Event"  # noqa: S105

    _kinds: dict[StepKind, str] = {  # noqa: RUF012 - a table
        "agent": "AGENT",
        "tool": "TOOL",
        "retrieval": "RETRIEVER",
        "embedding": "EMBEDDING",
        "rerank": "RERANKER",
        "guardrail": "GUARDRAIL",
        "evaluation": "EVALUATOR",
    }

    def call(self, call: Call) -> Words:
        said: Attributes = {
            "openinference.span.kind": "LLM",
            "llm.model_name": call.model.name,
            "llm.provider": call.model.provider,
            "llm.invocation_parameters": text({"temperature": 0.2}),
            "input.value": call.messages[-1]["content"],
        }
        for place, message in enumerate(call.messages):
            said[f"llm.input_messages.{place}.message.role"] = message["role"]
            said[f"llm.input_messages.{place}.message.content"] = message["content"]
        if call.reply is not None:
            said |= {
                "output.value": call.reply,
                "llm.output_messages.0.message.role": "assistant",
                "llm.output_messages.0.message.content": call.reply,
                "llm.token_count.prompt": call.input_tokens,
                "llm.token_count.completion": call.output_tokens,
                "llm.token_count.total": call.input_tokens + call.output_tokens,
                "llm.token_count.prompt_details.cache_read": call.cached,
            }
        if call.cost is not None:
            said["llm.cost.total"] = usd(call.cost)
        return "ChatOpenAI" if call.model.provider == "openai" else "ChatModel", said

    def step(self, step: Step) -> Words:
        said: Attributes = {
            "openinference.span.kind": self._kinds.get(step.kind, "CHAIN"),
            "input.value": step.input,
        }
        if step.output is not None:
            said["output.value"] = step.output
        if step.kind == "tool":
            said["tool.name"] = step.name
        if step.kind == "embedding" and step.model is not None:
            said |= {"embedding.model_name": step.model.name, "llm.token_count.prompt": step.tokens}
        for place, document in enumerate(step.documents):
            said[f"retrieval.documents.{place}.document.content"] = document
            said[f"retrieval.documents.{place}.document.score"] = round(0.93 - place * 0.07, 2)
        return step.name, said

    def person(self, person: Person) -> Attributes:
        return {"session.id": person.conversation, "user.id": person.user, "tag.tags": [person.label]}


class Traceloop:
    """OpenLLMetry."""

    scope = "opentelemetry.instrumentation.openai.v1"
    first_token = "llm.content.completion.chunk"  # noqa: S105

    def call(self, call: Call) -> Words:
        said: Attributes = {
            "llm.request.type": "chat",
            "gen_ai.system": call.model.provider,
            "gen_ai.request.model": call.model.name,
            "llm.is_streaming": call.first_token is not None,
        }
        for place, message in enumerate(call.messages):
            said[f"gen_ai.prompt.{place}.role"] = message["role"]
            said[f"gen_ai.prompt.{place}.content"] = message["content"]
        if call.reply is not None:
            said |= {
                "gen_ai.response.model": call.model.answers_as,
                "gen_ai.completion.0.role": "assistant",
                "gen_ai.completion.0.content": call.reply,
                "gen_ai.completion.0.finish_reason": "stop",
                "gen_ai.usage.prompt_tokens": call.input_tokens,
                "gen_ai.usage.completion_tokens": call.output_tokens,
                "llm.usage.total_tokens": call.input_tokens + call.output_tokens,
                "gen_ai.usage.cache_read_input_tokens": call.cached,
            }
        return f"{call.model.provider}.chat", said

    def step(self, step: Step) -> Words:
        if step.kind == "embedding" and step.model is not None:
            return f"{step.model.provider}.embeddings", {
                "llm.request.type": "embedding",
                "gen_ai.system": step.model.provider,
                "gen_ai.request.model": step.model.name,
                "gen_ai.prompt.0.content": step.input,
                "gen_ai.usage.prompt_tokens": step.tokens,
            }
        kind = step.kind if step.kind in ("workflow", "agent", "tool") else "task"
        said: Attributes = {
            "traceloop.span.kind": kind,
            "traceloop.entity.name": step.name,
            "traceloop.entity.input": text({"inputs": step.input}),
        }
        if step.output is not None:
            said["traceloop.entity.output"] = text({"outputs": step.output})
        return f"{step.name}.{kind}", said

    def person(self, person: Person) -> Attributes:
        return {
            "traceloop.association.properties.session_id": person.conversation,
            "traceloop.association.properties.user_id": person.user,
        }


class Vercel:
    """Vercel's AI SDK."""

    scope = "ai"
    first_token = "ai.stream.firstChunk"  # noqa: S105

    def call(self, call: Call) -> Words:
        name = "ai.generateText.doGenerate" if call.first_token is None else "ai.streamText.doStream"
        said: Attributes = {
            "operation.name": name,
            "ai.operationId": name,
            "ai.model.id": call.model.name,
            "ai.model.provider": f"{call.model.provider}.chat",
            "ai.prompt.messages": text(call.messages),
            "gen_ai.system": call.model.provider,
            "gen_ai.request.model": call.model.name,
        }
        if call.reply is not None:
            said |= {
                "ai.response.text": call.reply,
                "ai.response.finishReason": "stop",
                "ai.response.model": call.model.answers_as,
                "ai.usage.inputTokens": call.input_tokens,
                "ai.usage.outputTokens": call.output_tokens,
                "ai.usage.cachedInputTokens": call.cached,
                "gen_ai.usage.input_tokens": call.input_tokens,
                "gen_ai.usage.output_tokens": call.output_tokens,
            }
        if call.first_token is not None:
            said["ai.response.msToFirstChunk"] = call.first_token / 1_000_000
        return name, said

    def step(self, step: Step) -> Words:
        if step.kind == "tool":
            said: Attributes = {
                "operation.name": "ai.toolCall",
                "ai.operationId": "ai.toolCall",
                "ai.toolCall.name": step.name,
                "ai.toolCall.args": text({"query": step.input}),
            }
            if step.output is not None:
                said["ai.toolCall.result"] = text(step.output)
            return "ai.toolCall", said
        name = "ai.embed.doEmbed" if step.kind == "embedding" else "ai.generateText"
        said = {"operation.name": name, "ai.operationId": name, "ai.telemetry.functionId": step.name}
        said["ai.value" if step.kind == "embedding" else "ai.prompt"] = text({"prompt": step.input})
        if step.model is not None:
            said["ai.model.id"] = step.model.name
            said["ai.usage.tokens"] = step.tokens
        elif step.output is not None:
            said["ai.response.text"] = step.output
        return name, said

    def person(self, person: Person) -> Attributes:
        return {
            "ai.telemetry.metadata.userId": person.user,
            "ai.telemetry.metadata.sessionId": person.conversation,
        }


class LangWatch:
    """LangWatch's SDKs."""

    scope = "langwatch"
    first_token = "first_token"  # noqa: S105

    _types: dict[StepKind, str] = {  # noqa: RUF012 - a table
        "retrieval": "rag",
        "embedding": "component",
        "rerank": "component",
        "task": "span",
    }

    def call(self, call: Call) -> Words:
        counts = {"prompt_tokens": call.input_tokens, "completion_tokens": call.output_tokens}
        said: Attributes = {
            "langwatch.span.type": "llm",
            "gen_ai.request.model": call.model.name,
            "gen_ai.system": call.model.provider,
            "langwatch.input": text({"type": "chat_messages", "value": call.messages}),
        }
        if call.reply is not None:
            answer = [{"role": "assistant", "content": call.reply}]
            said["langwatch.output"] = text({"type": "chat_messages", "value": answer})
            said["langwatch.metrics"] = text(counts | {"reasoning_tokens": call.reasoning})
        if call.cost is not None:
            said["langwatch.span.cost"] = usd(call.cost)
        return f"{call.model.name} completion", said

    def step(self, step: Step) -> Words:
        said: Attributes = {
            "langwatch.span.type": self._types.get(step.kind, step.kind),
            "langwatch.input": text({"type": "text", "value": step.input}),
        }
        if step.output is not None:
            said["langwatch.output"] = text({"type": "text", "value": step.output})
        if step.documents:
            said["langwatch.rag_contexts"] = text([{"content": document} for document in step.documents])
        return step.name, said

    def person(self, person: Person) -> Attributes:
        return {
            "langwatch.user_id": person.user,
            "langwatch.thread_id": person.conversation,
            "langwatch.customer_id": person.customer,
            "langwatch.labels": [person.label],
        }


def _parts(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "parts": [{"type": "text", "content": content}]}


DIALECTS: dict[str, Dialect] = {
    "genai": GenAi(),
    "openinference": OpenInference(),
    "traceloop": Traceloop(),
    "vercel": Vercel(),
    "langwatch": LangWatch(),
}
DIALECT_WEIGHTS = (60, 14, 10, 8, 8)
