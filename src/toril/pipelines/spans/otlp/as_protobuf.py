"""OTLP as protobuf, by the generated classes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1 import common_pb2
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.resource.v1 import resource_pb2
from opentelemetry.proto.trace.v1 import trace_pb2

from toril.errors import InvalidValue
from toril.pipelines.spans.otlp.reading import BadRequest, Decoded, Limits, Reader
from toril.pipelines.spans.otlp.values import recorded_bytes, recorded_float, recorded_object
from toril.pipelines.spans.otlp.writing import Classes, Writer
from toril.pipelines.spans.span import Attributes, Span

PLAIN = frozenset({"string_value", "int_value", "bool_value"})
COMPOSED = frozenset({"array_value", "kvlist_value", "bytes_value"})


def decode(body: bytes, limits: Limits) -> Decoded:
    """The spans of a request."""
    try:
        request = ExportTraceServiceRequest.FromString(body)
    except DecodeError as problem:
        raise BadRequest(f"the body is no ExportTraceServiceRequest in protobuf: {problem}") from None
    return ProtobufReader(limits).read(request)


class ProtobufReader(Reader):
    """Reads the generated classes."""

    def ident(self, field: str, raw: bytes, length: int) -> bytes:
        if raw and len(raw) != length:
            raise InvalidValue(field, raw[:32].hex(), f"{length} bytes, not {len(raw)}")
        return raw

    def whole(self, field: str, raw: int, most: int) -> int:
        raise InvalidValue(field, raw, f"a whole number from 0 to {most}")

    def enum(self, field: str, raw: int, prefix: str, names: tuple[str, ...]) -> int:  # noqa: ARG002
        raise InvalidValue(field, raw, f"a whole number from 0 to {len(names) - 1}")

    def attributes(self, pairs: Any) -> Attributes:
        self.check_length("attributes", pairs, self.limits.attributes)
        surely_short = self.surely_short
        attributes: Attributes = {}
        for pair in pairs:
            value = pair.value
            # Most are texts or whole numbers: to ask for these is faster than to ask what there is.
            if text := value.string_value:
                if len(text) > surely_short:
                    self.check_value(pair.key, text)
                attributes[pair.key] = text
            else:
                attributes[pair.key] = value.int_value or self._value(pair.key, value, 0)
        return self.checked_names(attributes)

    def _value(self, name: str, value: AnyValue, depth: int) -> Any:
        """A value of the attribute ``name``, or a part of one."""
        which = value.WhichOneof("value")
        if which in PLAIN:
            return getattr(value, which)
        if which == "double_value":
            return recorded_float(value.double_value)
        if which not in COMPOSED:
            return None
        made = self._composed(name, value, which, depth)
        if not depth:
            self.check_value(name, made)
        return made

    def _composed(self, name: str, value: AnyValue, which: str, depth: int) -> Any:
        if which == "bytes_value":
            return recorded_bytes(value.bytes_value)
        self.check_depth(name, depth)
        if which == "array_value":
            values = value.array_value.values
            return [one.string_value or self._value(name, one, depth + 1) for one in values]
        pairs = value.kvlist_value.values
        return recorded_object({pair.key: self._value(name, pair.value, depth + 1) for pair in pairs})


def encode(spans: Iterable[Span]) -> bytes:
    """A request with these spans."""
    body: bytes = _writer.request(spans).SerializeToString()
    return body


def _as_it_is(value: Any) -> Any:
    return value


_writer = Writer(
    Classes(
        request=ExportTraceServiceRequest,
        resource_spans=trace_pb2.ResourceSpans,
        resource=resource_pb2.Resource,
        scope_spans=trace_pb2.ScopeSpans,
        scope=common_pb2.InstrumentationScope,
        span=trace_pb2.Span,
        event=trace_pb2.Span.Event,
        link=trace_pb2.Span.Link,
        status=trace_pb2.Status,
        pair=common_pb2.KeyValue,
        value=common_pb2.AnyValue,
        array=common_pb2.ArrayValue,
        pairs=common_pb2.KeyValueList,
    ),
    ident=bytes.fromhex,
    whole=_as_it_is,
    fraction=_as_it_is,
    bytes_=_as_it_is,
)
