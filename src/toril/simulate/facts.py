"""The world of the simulated applications: models, services, tools, and what people ask."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Model:
    """A model, about as fast and as dear as the real one."""

    provider: str
    name: str
    answers_as: str
    """What the provider calls it in its response."""
    input_price: int
    """Nano-USD per token."""
    output_price: int
    first_token: float
    """Seconds."""
    speed: float
    """Tokens per second."""
    reasons: bool = False


MODELS = (
    Model("openai", "gpt-4o", "gpt-4o-2024-08-06", 2_500, 10_000, 0.45, 95),
    Model("openai", "gpt-4o-mini", "gpt-4o-mini-2024-07-18", 150, 600, 0.35, 110),
    Model("openai", "gpt-4.1", "gpt-4.1-2025-04-14", 2_000, 8_000, 0.5, 90),
    Model("openai", "o3-mini", "o3-mini-2025-01-31", 1_100, 4_400, 4.0, 140, reasons=True),
    Model("anthropic", "claude-sonnet-4-0", "claude-sonnet-4-20250514", 3_000, 15_000, 0.9, 70),
    Model("anthropic", "claude-3-5-haiku-latest", "claude-3-5-haiku-20241022", 800, 4_000, 0.5, 100),
    Model("gcp.vertex_ai", "gemini-2.5-pro", "gemini-2.5-pro", 1_250, 10_000, 2.5, 150, reasons=True),
    Model("gcp.vertex_ai", "gemini-2.0-flash", "gemini-2.0-flash-001", 100, 400, 0.3, 180),
    Model("groq", "llama-3.3-70b-versatile", "llama-3.3-70b-versatile", 590, 790, 0.2, 280),
    Model("mistral_ai", "mistral-large-latest", "mistral-large-2411", 2_000, 6_000, 0.6, 60),
)
MODEL_WEIGHTS = (18, 26, 10, 6, 14, 8, 4, 8, 4, 2)

EMBEDDER = Model("openai", "text-embedding-3-small", "text-embedding-3-small", 20, 0, 0.05, 1)
RERANKER = Model("cohere", "rerank-v3.5", "rerank-v3.5", 0, 0, 0.05, 1)

SERVICES = {
    "web-frontend": ("nodejs", "2.14.0"),
    "support-bot": ("python", "5.3.1"),
    "research-agent": ("python", "0.9.4"),
    "docs-search": ("python", "1.22.0"),
    "retriever": ("go", "3.0.2"),
    "indexer": ("python", "1.22.0"),
    "quality-gate": ("python", "0.4.0"),
}
"""Their language, and their version."""

TOOLS = {
    "search_web": ("{topic}", "12 results; the best one is the provider's own page about {topic}."),
    "get_order": ("order 10{n}", '{{"order": 10{n}, "state": "shipped", "items": 3, "total": "89.90"}}'),
    "run_sql": ("SELECT count(*) FROM tickets WHERE topic = '{topic}'", "[[4{n}]]"),
    "get_weather": ("Utrecht, in {n} hours", '{{"celsius": 1{n}, "wind": "SW 4", "rain": 0.2}}'),
    "read_file": ("src/{topic}/handler_{n}.py", "def handle(request):\n    return Response(status=204)"),
    "calculator": ("1{n} * 37 / 100", "{n}.07"),
    "send_email": ("to the customer, about {topic}", '{{"accepted": true}}'),
}

AGENTS = ("planner", "researcher", "coder", "support_agent", "travel_agent")

TOPICS = (
    "refunds", "late deliveries", "invoices", "passwords", "rate limits", "data retention",
    "single sign-on", "webhooks", "the mobile app", "time zones", "exports", "billing periods",
)  # fmt: skip

QUESTIONS = (
    "How do {topic} work when I am on the yearly plan?",
    "Something is wrong with {topic} since this morning, can you look into it?",
    "Summarise what we know about {topic}, in three sentences.",
    "My colleague says {topic} changed last month. What is different now?",
    "Wat zijn de regels voor {topic}?",
    "Compare {topic} with how our competitors do it. 请用中文回答。",
)

SENTENCES = (
    "In short: {topic} follow the plan that was active on the first day of the month.",
    "You can change this under Settings, in the section about {topic}.",
    "I looked at your account and found nothing unusual.",
    "Two earlier conversations were about the same thing, and both were solved within a day.",
    "If it happens again, please send us the time and the request id.",
    "That takes effect at once; what was billed before stays as it is.",
    "The documentation of {topic} has an example for exactly this case.",
    "I have written it down for the team, and you will hear from us by e-mail. 🙂",
)

SYSTEM = (
    "You are a careful assistant of a software company. Answer from the documents that you are given, say "
    "when you do not know, and never make up prices, dates or names."
)

FAILURES = (
    ("openai.RateLimitError", "Error code: 429 - Rate limit reached for requests", 0.12),
    ("openai.APITimeoutError", "Request timed out.", 20.0),
    ("anthropic.APIStatusError", "Error code: 529 - Overloaded", 0.9),
    ("openai.BadRequestError", "Error code: 400 - This model's maximum context length is 128000 tokens", 0.2),
)
"""How calls of models fail: the error, what it says, and after about how many seconds."""

TOOL_TIMEOUT = ("httpx.ConnectTimeout", "timed out", 5.0)
TOOL_FAILURES = {
    "get_order": ("KeyError", "'order'", 0.004),
    "run_sql": ("asyncpg.exceptions.UndefinedColumnError", 'column "topc" does not exist', 0.03),
    "read_file": ("FileNotFoundError", "[Errno 2] No such file or directory", 0.001),
    "calculator": ("ZeroDivisionError", "division by zero", 0.000_1),
}
"""How tools fail; the others do so by :data:`TOOL_TIMEOUT`."""
