"""Which span a job is made in, as its row carries it: with OpenTelemetry's real SDK, and without it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Tracer

from sa_jobqueue import Job

GIVEN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def spans() -> InMemorySpanExporter:
    """Give the spans that have ended."""
    return InMemorySpanExporter()


@pytest.fixture
def tracer(spans: InMemorySpanExporter) -> Iterator[Tracer]:
    """Return a tracer of a provider that is not shared."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    yield provider.get_tracer("test")
    provider.shutdown()


def written(span: ReadableSpan) -> str:
    """Return a span's traceparent, put together by hand."""
    context = span.get_span_context()
    assert context is not None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"


def test_an_explicit_trace_context_is_kept(tracer: Tracer) -> None:
    with tracer.start_as_current_span("current"):
        traced, none = Job("test", trace_context=GIVEN), Job("test", trace_context=None)
        both = Job("test", trace_context=GIVEN, chain_trace_context=None)
    assert traced.trace_context == traced.chain_trace_context == GIVEN
    assert none.trace_context is none.chain_trace_context is None
    assert (both.trace_context, both.chain_trace_context) == (GIVEN, None)


@pytest.mark.slow
@pytest.mark.parametrize("before", ["", "sys.modules['opentelemetry.trace'] = None", "import opentelemetry.trace"])
def test_opentelemetry_is_not_needed(before: str) -> None:
    """Not loaded, not usable, and loaded without any SDK."""
    script = f"""
import sys
{before}
loaded = set(sys.modules)
from sa_jobqueue import Job
assert "trace_context" not in Job("test").__dict__
assert not [name for name in set(sys.modules) - loaded if name.startswith("opentelemetry") and {not before}]
"""
    subprocess.run([sys.executable, "-W", "error", "-c", script], check=True, timeout=240)
