"""What a service measures, in the form of Prometheus."""

import dataclasses
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from zeus_trt.runtime import Report
from zeus_trt.serving.image_request import ImageRequest
from zeus_trt.serving.service import Service
from zeus_trt.zeus_graph import PRESETS

_GAUGES = {
    "queued": "Requests that wait for their begin",
    "active": "Requests that run",
    "waiting": "Calls that wait for the engine",
}
_COUNTERS = {
    "submitted": "Requests that were taken",
    "finished": "Requests that ended with a result",
    "failed": "Requests that ended with an error",
    "cancelled": "Requests that were cancelled",
    "refused": "Requests that the queue had no place for",
    "calls": "Calls of the engine",
    "rows": "Rows of these calls, without padding",
    "padding": "Rows that were added to them",
    "engine_seconds": "Time inside the engine",
}


class Metrics:
    """The metrics of one service, in a registry that no other one shares.

    Args:
        service: Its counters are read when the metrics are.
    """

    def __init__(self, service: Service):
        self._service = service
        self._registry = CollectorRegistry()
        self._registry.register(self)
        self._answers = Counter(
            "zeus_trt_http_answers", "Answers to requests for pictures", ["status"], registry=self._registry
        )
        self._seconds = Histogram(
            "zeus_trt_request_seconds", "Time from a request to its result",
            registry=self._registry, buckets=(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300),
        )  # fmt: skip
        self._plans = Counter(
            "zeus_trt_plans", "Results by the plan that was asked for", ["plan"], registry=self._registry
        )
        self._steps = Counter("zeus_trt_steps", "Steps of results by what was done", ["kind"], registry=self._registry)

    def collect(self) -> Iterator[Metric]:
        """What the batcher counts, for the registry."""
        counters = dataclasses.asdict(self._service.counters)
        for name, text in _COUNTERS.items():
            yield CounterMetricFamily(f"zeus_trt_{name}", text, counters[name])
        for name, text in _GAUGES.items():
            yield GaugeMetricFamily(f"zeus_trt_{name}", text, counters[name])
        room = counters["calls"] * self._service.model.max_rows
        fill = counters["rows"] / room if room else 0.0
        yield GaugeMetricFamily("zeus_trt_batch_fill", "Rows of a call, of the most that it may have, on average", fill)

    def note_answer(self, status: int) -> None:
        """Counts an answer."""
        self._answers.labels(str(status)).inc()

    def note_result(self, asked: ImageRequest, report: Report, seconds: float) -> None:
        """Counts a result."""
        self._seconds.observe(seconds)
        self._plans.labels(_name_plan(asked)).inc()
        for letter in set(report.plan):
            self._steps.labels(letter).inc(report.plan.count(letter))

    def write(self) -> bytes:
        """All metrics as text."""
        return generate_latest(self._registry)


def _name_plan(asked: ImageRequest) -> str:
    """One of a few names: clients must not make new ones."""
    if asked.plan:
        return asked.plan if asked.plan in PRESETS else "letters"
    if asked.ratio is None and (asked.min_psnr or asked.deadline_ms):
        return "aim"
    ratio = 3 if asked.ratio is None else asked.ratio
    return f"ratio {ratio}" if ratio < 10 else "ratio 10 or more"
