"""OTLP as JSON, by typed structs."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable
from math import isfinite
from typing import Any, TypeVar

import msgspec

from toril.errors import InvalidValue
from toril.pipelines.spans.otlp import messages
from toril.pipelines.spans.otlp.leaves import bytes_of, fraction_of, ident_of, whole_of
from toril.pipelines.spans.otlp.messages import CAMEL, Ident, Number, Pair, Request, Value
from toril.pipelines.spans.otlp.reading import BadRequest, Decoded, Limits, Reader, shown
from toril.pipelines.spans.otlp.values import no_number, recorded_bytes, recorded_float, recorded_object
from toril.pipelines.spans.otlp.writing import Classes, Writer
from toril.pipelines.spans.span import Attributes, Span

T = TypeVar("T")

_decoder = msgspec.json.Decoder(Request)
_original_name = re.compile(rf'"(?:{"|".join(CAMEL)})"\s*:'.encode())
_escapes = re.compile(  # whole ones, as many as follow each other; or half a character
    rb"(?:\\(?:[^u]|u(?![dD][89a-fA-F])|u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})[^\\]*+)++"
    rb"|(?P<half>\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
)


def decode(body: bytes, limits: Limits) -> Decoded:
    """The spans of a request."""
    try:
        return _decode(body, limits)
    except RecursionError:
        raise BadRequest("the body is nested too deeply") from None
    except UnicodeDecodeError as problem:
        raise BadRequest(f"the body is no UTF-8: {problem.reason}") from None
    except msgspec.MsgspecError as problem:
        raise BadRequest(f"the body is no ExportTraceServiceRequest in JSON: {problem}") from None


def _decode(body: bytes, limits: Limits) -> Decoded:
    try:
        request = _decoder.decode(body)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        mended = _escapes.sub(lambda found: rb"\ufffd" if found["half"] else found[0], body)
        if mended == body:
            raise
        body = mended
        request = _decoder.decode(body)
    reader = JsonReader(limits)
    decoded = reader.read(request)
    if reader.lacking and _original_name.search(body):
        # The names must be lowerCamelCase, but protobuf's own JSON also has the original ones.
        request = msgspec.convert(_camel(msgspec.json.decode(body)), Request)
        decoded = JsonReader(limits).read(request)
    return decoded


def _camel(value: Any) -> Any:
    """With the names of all fields as JSON has them. Only fields are names here: attributes are lists."""
    if isinstance(value, dict):
        return {CAMEL.get(name, name): _camel(content) for name, content in value.items()}
    if isinstance(value, list):
        return [_camel(one) for one in value]
    return value


class JsonReader(Reader):
    """Reads the structs."""

    lacking = False
    """Whether something is not there that nearly always is."""

    def read(self, request: Request) -> Decoded:
        of_resources = request.resource_spans
        self.lacking = of_resources is None or any(one.scope_spans is None for one in of_resources)
        return super().read(request)

    def ident(self, field: str, raw: Ident, length: int) -> bytes:
        if not raw:
            self.lacking |= field == "trace_id"
            return b""
        made = ident_of(raw, length)
        if made is None:
            raise InvalidValue(field, str(raw)[:64], f"{length} bytes as {2 * length} hex digits")
        return made

    def whole(self, field: str, raw: Number, most: int) -> int:
        if raw is None:
            return 0
        made = whole_of(raw, 0, most)
        if made is None:
            raise InvalidValue(field, str(raw)[:64], f"a whole number from 0 to {most}")
        return made

    def enum(self, field: str, raw: int | str | None, prefix: str, names: tuple[str, ...]) -> int:
        if raw is None:
            return 0
        if isinstance(raw, str) and raw.startswith(prefix) and raw[len(prefix) :] in names:
            return names.index(raw[len(prefix) :])
        known = f"a whole number from 0 to {len(names) - 1}, or {prefix}{f', {prefix}'.join(names)}"
        raise InvalidValue(field, raw if isinstance(raw, int) else raw[:64], known)

    def attributes(self, pairs: list[Pair] | None) -> Attributes:
        if not pairs:
            return {}
        self.check_length("attributes", pairs, self.limits.attributes)
        surely_short = self.surely_short
        attributes: Attributes = {}
        for pair in pairs:
            name = pair.key or ""
            value = pair.value
            if value is not None and (text := value.string_value) is not None:
                if len(text) > surely_short:
                    self.check_value(name, text)
                attributes[name] = text
            else:
                attributes[name] = self._value(name, value, 0)
        return self.checked_names(attributes)

    def _value(self, name: str, value: Value | None, depth: int) -> Any:
        """A value of the attribute ``name``, or a part of one."""
        if value is None:
            self.lacking = True
            return None
        if value.string_value is not None:
            return value.string_value
        if value.int_value is not None:
            return _proper(name, "a whole number of 64 bits", whole_of(value.int_value, -(2**63), 2**63 - 1))
        if value.bool_value is not None:
            return value.bool_value
        if value.double_value is not None:
            return recorded_float(_proper(name, "a number", fraction_of(value.double_value)))
        made = self._composed(name, value, depth)
        self.lacking |= made is None
        if made is not None and not depth:
            self.check_value(name, made)
        return made

    def _composed(self, name: str, value: Value, depth: int) -> Any:
        if value.bytes_value is not None:
            return recorded_bytes(_proper(name, "base64", bytes_of(value.bytes_value)))
        if value.array_value is not None:
            self.check_depth(name, depth)
            return [self._value(name, one, depth + 1) for one in value.array_value.values or ()]
        if value.kvlist_value is not None:
            self.check_depth(name, depth)
            pairs = value.kvlist_value.values or ()
            return recorded_object(
                {pair.key or "": self._value(name, pair.value, depth + 1) for pair in pairs}
            )
        return None


def _proper(name: str, rule: str, made: T | None) -> T:
    """What could be made of the value of an attribute. It is not shown: it may be a secret."""
    if made is None:
        raise InvalidValue(shown(name), "(not shown)", rule)
    return made


def encode(spans: Iterable[Span]) -> bytes:
    """A request with these spans."""
    return msgspec.json.encode(_writer.request(spans))


_writer = Writer(
    Classes(
        request=Request,
        resource_spans=messages.ResourceSpans,
        resource=messages.ResourceMessage,
        scope_spans=messages.ScopeSpans,
        scope=messages.ScopeMessage,
        span=messages.SpanMessage,
        event=messages.EventMessage,
        link=messages.LinkMessage,
        status=messages.StatusMessage,
        pair=messages.Pair,
        value=messages.Value,
        array=messages.Values,
        pairs=messages.Pairs,
    ),
    ident=str,
    whole=str,
    fraction=lambda value: value if isfinite(value) else no_number(value),
    bytes_=lambda value: base64.b64encode(value).decode(),
)
