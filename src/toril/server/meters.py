"""What the server counts about itself."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from toril.server.flight import Flight

LATENCIES = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Meters:
    """Counters with a registry of their own. No label names a tenant, a trace or a key."""

    def __init__(self, flight: Flight) -> None:
        self.registry = registry = CollectorRegistry(auto_describe=True)
        self.requests = Counter(
            "toril_http_requests", "Requests that were answered.", ["route", "status"], registry=registry
        )
        self.seconds = Histogram(
            "toril_http_request_seconds",
            "How long it took to answer a request.",
            ["route"],
            buckets=LATENCIES,
            registry=registry,
        )
        spans = Counter(
            "toril_collector_spans",
            "Spans that were sent: recorded now, recorded before, or refused.",
            ["outcome"],
            registry=registry,
        )
        self.recorded = spans.labels("recorded")
        self.repeated = spans.labels("repeated")
        self.refused = spans.labels("refused")
        size = Counter(
            "toril_collector_bytes",
            "Bytes of requests to record spans: received, and inflated.",
            ["form"],
            registry=registry,
        )
        self.received, self.inflated = size.labels("received"), size.labels("inflated")
        self.loop_lag = Gauge(
            "toril_event_loop_lag_seconds",
            "How late the event loop was at most, during the last ten seconds.",
            registry=registry,
        )
        Gauge(
            "toril_collector_in_flight_bytes", "Bytes of requests in flight.", registry=registry
        ).set_function(lambda: flight.bytes)
        Gauge("toril_collector_in_flight_requests", "Requests in flight.", registry=registry).set_function(
            lambda: flight.requests
        )
