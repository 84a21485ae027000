"""Prometheus metrics under SGLang's names, so that its dashboards work."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sglang_lite.runtime.messages import RequestOutput
from sglang_lite.runtime.server.errors import to_api_error

if TYPE_CHECKING:
    from sglang_lite.runtime.engine import Engine

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)
_TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536)


class EngineCollector(Collector):
    """Reads ``Engine.stats()`` when somebody scrapes."""

    def __init__(self, engine: Engine, model_name: str) -> None:
        self._engine = engine
        self._model_name = model_name

    def collect(self) -> Iterator[Metric]:
        """Gauges, and counters for the names that end in ``_total``."""
        stats = self._engine.stats()
        used, slots = stats.get("kv_used_tokens", 0), stats.get("max_total_num_tokens", 0)
        # Two more of SGLang's names, which its dashboards draw.
        more = {"num_used_tokens": used, "token_usage": used / slots if slots else 0.0}
        for name, value in {**stats, **more}.items():
            # The server's own counter of refusals has their reasons.
            if name == "num_rejected_requests_total" or not isinstance(value, (int, float)):
                continue
            family: Metric
            if name.endswith("_total"):
                family = CounterMetricFamily(f"sglang:{name}", name, labels=["model_name"])
            else:
                family = GaugeMetricFamily(f"sglang:{name}", name, labels=["model_name"])
            family.add_metric([self._model_name], value)
            yield family


class Metrics:
    """What only the server can measure, beside the engine's own numbers."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._rejected = self._counter("num_rejected_requests", ("reason",))
        self._requests = self._counter("http_requests", ("endpoint",))
        self._responses = self._counter("http_responses", ("endpoint", "status"))

    def attach(self, engine: Engine, model_name: str) -> None:
        """The engine is loaded: from now on requests are measured."""
        self.registry.register(EngineCollector(engine, model_name))

        def histogram(name: str, buckets: tuple[float, ...]) -> Histogram:
            made = Histogram(
                f"sglang:{name}", name, ("model_name",), registry=self.registry, buckets=buckets
            )
            # The labelled child is looked up once, not at every token.
            return made.labels(model_name)

        self.ttft = histogram("time_to_first_token_seconds", _SECONDS)
        self.itl = histogram("inter_token_latency_seconds", _SECONDS)
        self.tpot = histogram("request_time_per_output_token_seconds", _SECONDS)
        self.e2e = histogram("e2e_request_latency_seconds", _SECONDS)
        self.queue = histogram("queue_time_seconds", _SECONDS)
        self.compile = histogram("grammar_compilation_time_seconds", _SECONDS)
        self.prompt = histogram("prompt_tokens_histogram", _TOKENS)
        self.generated = histogram("generation_tokens_histogram", _TOKENS)

    def _counter(self, name: str, labels: tuple[str, ...]) -> Counter:
        return Counter(f"sglang:{name}", name, labels, registry=self.registry)

    def responded(self, endpoint: str, status: int) -> None:
        """Count one HTTP response; ``endpoint`` is a route, never a raw path."""
        self._requests.labels(endpoint).inc()
        self._responses.labels(endpoint, str(status)).inc()

    def rejected(self, error: BaseException) -> None:
        """Count a request that was refused before it started."""
        self._rejected.labels(to_api_error(error).code or "other").inc()

    def clock(self) -> RequestClock:
        """A stop watch for one HTTP request."""
        return RequestClock(self)

    def render(self) -> bytes:
        """The text that Prometheus reads."""
        return generate_latest(self.registry)


class RequestClock:
    """Measures the gaps between the tokens of each sample."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._last: dict[tuple[int, int], float] = {}

    def tick(self, sample: tuple[int, int], output: RequestOutput) -> None:
        """An output of ``sample`` (request, index) has arrived."""
        metrics, now = self._metrics, time.perf_counter()
        last = self._last.get(sample)
        if last is not None and output.token_ids:
            metrics.itl.observe((now - last) / len(output.token_ids))
        self._last[sample] = now
        if output.finish_reason is None:
            return
        usage = output.usage
        if usage.completion_tokens:
            metrics.ttft.observe(usage.ttft_s)
        if usage.completion_tokens > 1:
            decoding = usage.e2e_s - usage.ttft_s
            metrics.tpot.observe(max(0.0, decoding) / (usage.completion_tokens - 1))
        metrics.e2e.observe(usage.e2e_s)
        metrics.queue.observe(usage.queue_s)
        if usage.compile_s:
            metrics.compile.observe(usage.compile_s)
        metrics.prompt.observe(usage.prompt_tokens)
        metrics.generated.observe(usage.completion_tokens)
