"""Turns rows of figures into families of Prometheus metrics with safe labels."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from gpq.control import counters as counting

LONGEST_LABEL = 128  # characters
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")
# values of the labels, and the figure. Leaves out None, which means unknown
Row = tuple[tuple[str, ...], float | None]


def gauge(name: str, documentation: str, labels: list[str], rows: Iterable[Row]) -> Metric:
    return _filled(GaugeMetricFamily(name, documentation, labels=labels), rows)


def counter(name: str, documentation: str, labels: list[str], rows: Iterable[Row]) -> Metric:
    """`name`: without `_total`, which is added."""
    return _filled(CounterMetricFamily(name, documentation, labels=labels), rows)


def _filled(family: GaugeMetricFamily | CounterMetricFamily, rows: Iterable[Row]) -> Metric:
    for values, figure in rows:
        if figure is not None and math.isfinite(figure):
            family.add_metric([label(value) for value in values], figure)
    return family


def histogram(name: str, documentation: str, figures: counting.Histogram) -> Metric:
    buckets = [(_bound(bound), float(count)) for bound, count in figures.cumulated]
    return HistogramMetricFamily(name, documentation, buckets=buckets, sum_value=figures.total)


def label(text: str) -> str:
    """A text from jobs or servers as a label: without control characters, and not too long."""
    return CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)[:LONGEST_LABEL]


def _bound(bound: float) -> str:
    return "+Inf" if math.isinf(bound) else repr(bound)
