"""Names that belong to no dialect, or to several: read last, in every span that says anything of AI."""

from __future__ import annotations

from toril.pipelines.spans.dialects.reading import (
    Dialect,
    count,
    dollars,
    first_event,
    last_event,
    rule,
    small_text,
    text,
    texts,
)

COMMON = Dialect(
    "common",
    (),
    (
        rule("provider", small_text, "llm.vendor"),
        rule("request_model", text, "llm.request.model"),
        rule("response_model", text, "llm.response.model"),
        rule("input_tokens", count, "llm.usage.prompt_tokens"),
        rule("output_tokens", count, "llm.usage.completion_tokens"),
        rule("cost", dollars, "operation.cost"),
        rule("first_token", first_event, "llm.first_token", "first_token"),
        rule("last_token", last_event, "llm.last_token", "last_token"),
        rule(
            "conversation",
            text,
            "session.id",
            "metadata.thread_id",
            "metadata.session_id",
            "metadata.conversation_id",
        ),
        rule("user", text, "user.id", "enduser.id", "metadata.user_id"),
        rule("customer", text, "metadata.customer_id"),
        rule("labels", texts, "metadata.labels", "metadata.tags"),
    ),
)
