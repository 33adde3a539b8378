"""The figures of a health report as OpenTelemetry metrics, measured for each export."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from sa_jobqueue.observe.health import Health
from sa_jobqueue.observe.metrics.samples import Sample, measured

_UNITS: Final = {"_seconds": "s", "_bytes": "By", "_ratio": "1", "_per_second": "{job}/s"}
"""Units by the suffix of Prometheus' names; in OpenTelemetry the unit is not part of the name."""
_NAMES: Final = {"table_bytes": "table.size", "table_index_bytes": "table.index_size"}
_CACHE_SECONDS: Final = 2.0
"""Seconds for which a report is cached: an export reads each figure separately."""


class DatabaseMetrics:
    """Observes the figures of a report. If the database does not answer, `sa_jobqueue.up` 0 is the only metric."""

    def __init__(self, meter: Meter, read: Callable[[], Health], samples: Iterable[Sample]) -> None:
        self._read = read
        self._until = float("-inf")
        self._figures: dict[str, Sample] = {}
        for sample in samples:
            create = meter.create_observable_counter if sample.only_grows else meter.create_observable_gauge
            name, unit = _name_and_unit(sample.name)
            create(name, [partial(self._observe, sample.name)], unit, sample.words)

    def _observe(self, name: str, options: CallbackOptions) -> Iterable[Observation]:
        if time.monotonic() > self._until:
            self._figures = {sample.name: sample for sample in measured(self._read)}
            self._until = time.monotonic() + _CACHE_SECONDS
        sample = self._figures.get(name)
        if sample is None:
            return []
        keys = [f"sa_jobqueue.{label}" for label in sample.labels]
        return [Observation(value, dict(zip(keys, labels, strict=True))) for labels, value in sample.values.items()]


def _name_and_unit(name: str) -> tuple[str, str]:
    """Return the name and unit of a figure."""
    for end, unit in _UNITS.items():
        if name.endswith(end):
            return f"sa_jobqueue.{_NAMES.get(name, name.removesuffix(end))}", unit
    return f"sa_jobqueue.{name}", ""
