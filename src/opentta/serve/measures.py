"""What is counted of the service: for Prometheus, and of the last minute for the page."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from statistics import quantiles

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

BUCKETS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)  # seconds
MINUTE, MOST = 60.0, 20_000  # latencies that are kept for the page


class _Now(Collector):
    """Numbers that are read when somebody asks."""

    def __init__(
        self, counts: Mapping[str, Callable[[], float]], gauges: Mapping[str, Callable[[], float]]
    ) -> None:
        self._counts, self._gauges = counts, gauges

    def collect(self) -> Iterator[Metric]:
        """One sample each, without labels."""
        for name, read in self._counts.items():
            yield CounterMetricFamily(f"opentta_{name}", name.replace("_", " "), read())
        for name, read in self._gauges.items():
            yield GaugeMetricFamily(f"opentta_{name}", name.replace("_", " "), read())


class Measures:
    """Counts of one service, in a registry of their own; no label names a stream.

    Example:
        >>> measures = Measures({}, {"queue_images": lambda: 3})
        >>> measures.done("/healthz", "GET", 200, 0.001)
        >>> b"opentta_queue_images 3.0" in measures.text()
        True
    """

    def __init__(
        self, counts: Mapping[str, Callable[[], float]], gauges: Mapping[str, Callable[[], float]]
    ) -> None:
        self.requests = self.images = 0
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "opentta_requests",
            "requests by route, method and status",
            ("route", "method", "status"),
            registry=self._registry,
        )
        self._latency = Histogram(
            "opentta_answer_seconds",
            "from the request for an answer to its last byte",
            buckets=BUCKETS,
            registry=self._registry,
        )
        self._images = Counter("opentta_images", "images answered", registry=self._registry)
        self._registry.register(_Now(counts, gauges))
        ProcessCollector(registry=self._registry)
        self._recent: deque[tuple[float, float]] = deque(maxlen=MOST)

    def done(self, route: str, method: str, status: int, seconds: float) -> None:
        """A request was answered, with whatever status."""
        self.requests += 1
        self._requests.labels(route, method, str(status)).inc()

    def answered(self, images: int, seconds: float) -> None:
        """A request for answers was answered well."""
        self.images += images
        self._images.inc(images)
        self._latency.observe(seconds)
        self._recent.append((time.monotonic(), seconds))

    def latency_ms(self) -> dict[str, float | None]:
        """p50 and p99 of the last minute; None where nothing was asked."""
        since = time.monotonic() - MINUTE
        recent = [1000 * seconds for at, seconds in list(self._recent) if at >= since]
        if len(recent) < 2:
            one = recent[0] if recent else None
            return {"p50": one, "p99": one}
        cuts = quantiles(recent, n=100, method="inclusive")
        return {"p50": cuts[49], "p99": cuts[98]}

    def text(self) -> bytes:
        """All of it, as Prometheus reads it."""
        return generate_latest(self._registry)
