"""Messages to and from a model, in one form whatever the dialect.

A message is ``{"role": …, "content": …}``; content is text, or a list of parts where it is not only text.
What a model asks for is ``"tool_calls": [{"id": …, "name": …, "arguments": …}]`` with the arguments as JSON;
what a tool gave is a message of the role ``tool`` with its ``"tool_call_id"``.
"""

from __future__ import annotations

from typing import Any

from toril.pipelines.spans.dialects import values

Message = dict[str, Any]

_CALLS = frozenset({"tool_call", "tool-call", "tool_use"})
_RESULTS = frozenset({"tool_call_response", "tool-result", "tool_result"})


def conversation(said: Any) -> list[Message] | None:
    """A list of messages in any dialect's form; None where it is something else."""
    if not isinstance(said, list) or not said:
        return None
    messages: list[Message] = []
    for item in said:
        message = _within(item, "message")
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            return None
        messages += _normal(message)
    return messages


def one_form(said: Any) -> Any:
    """Messages in one form; anything else as it is."""
    return conversation(said) or said


def instructions(said: Any) -> list[Message]:
    """What a model is told beforehand, text or parts, as a message of the role ``system``."""
    if isinstance(said, dict):
        said = [said]
    return _normal({"role": "system", "content": said}) if isinstance(said, str | list) and said else []


def answer(text: Any = None, calls: Any = None) -> list[Message] | None:
    """What a model answered, if it is said as text and calls of tools."""
    message: Message = {"role": "assistant"}
    if isinstance(text, str) and text:
        message["content"] = text
    if isinstance(calls, list) and calls:
        message["tool_calls"] = calls
    return _normal(message) if len(message) > 1 else None


def documents(said: Any) -> list[Any] | None:
    """What was found, each without the name that some dialects wrap it in."""
    return [_within(item, "document") for item in said] if isinstance(said, list) else None


def _normal(message: Message) -> list[Message]:
    """One message; several where it holds what several tools gave."""
    parts, calls, results = _parts(message)
    normal: Message = {"role": message["role"]}
    if (name := values.text(message.get("name"))) is not None:
        normal["name"] = name
    content = _content(parts)
    if content is not None:
        normal["content"] = content
    given = message.get("tool_calls")
    calls += [_call(item) for item in given] if isinstance(given, list) else []
    if calls:
        normal["tool_calls"] = calls
    answers = _first(message, "tool_call_id", *(["id"] if message["role"] == "tool" else []))
    if answers is not None:
        normal["tool_call_id"] = answers
    if results and len(normal) == 1:
        return results
    return [normal, *results]


def _parts(message: Message) -> tuple[Any, list[Any], list[Message]]:
    """What a message holds: its content, the calls it asks for, and what tools gave."""
    held = next((message[name] for name in ("parts", "contents", "content") if name in message), None)
    if not isinstance(held, list):
        return held, [], []
    content, calls, results = [], [], []
    for item in held:
        part = _within(item, "message_content")
        kind = values.text(part.get("type")) if isinstance(part, dict) else None
        if kind in _CALLS:
            calls.append(_call(part))
        elif kind in _RESULTS:
            results.append(_result(part))
        else:
            content.append(_text_part(part))
    return content, calls, results


def _content(parts: Any) -> Any:
    """One text as itself; more, or other things, as parts."""
    if not isinstance(parts, list):
        return parts
    if not parts:
        return None
    only = parts[0] if len(parts) == 1 else None
    return only["text"] if isinstance(only, dict) and only.keys() == {"type", "text"} else parts


def _text_part(part: Any) -> Any:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if isinstance(part, dict) and part.get("type") == "text":
        text = part.get("text", part.get("content"))
        if isinstance(text, str):
            return {"type": "text", "text": text}
    return part


def _call(said: Any) -> Any:
    """A call of a tool: flat, with its arguments as JSON."""
    call = _within(said, "tool_call")
    if not isinstance(call, dict):
        return call
    function = call.get("function")
    inner = function if isinstance(function, dict) else call
    found = {
        "id": _first(call, "id", "toolCallId", "tool_call_id"),
        "name": _first(inner, "name", "toolName"),
        "arguments": values.json(_first(inner, "arguments", "input", "args")),
    }
    return {name: value for name, value in found.items() if value is not None}


def _result(part: dict[str, Any]) -> Message:
    result = _first(part, "response", "result", "output", "content")
    if isinstance(result, dict) and result.keys() == {"type", "value"}:
        result = result["value"]
    message = {
        "role": "tool",
        "content": result,
        "tool_call_id": _first(part, "id", "toolCallId", "tool_use_id"),
    }
    return {name: value for name, value in message.items() if value is not None}


def _within(item: Any, name: str) -> Any:
    """What is wrapped in a name, or the thing itself."""
    return item[name] if isinstance(item, dict) and isinstance(item.get(name), dict) else item


def _first(item: dict[str, Any], *names: str) -> Any:
    return next((item[name] for name in names if item.get(name) is not None), None)
