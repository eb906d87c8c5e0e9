"""Average shares over the lives of jobs, as text. gpq counts again what it cannot read: no fact is
lost."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import msgspec

from gpq import decoding
from gpq.core.model.accounts import MeanShare
from gpq.core.model.units import JobId

log = logging.getLogger(__name__)


def encode(means: Mapping[JobId, MeanShare]) -> str:
    """GPU-seconds and seconds, to the tenth."""
    short = {
        int(job): (round(mean.gpu_seconds, 1), round(mean.seconds, 1))
        for job, mean in sorted(means.items())
    }
    return msgspec.json.encode(short).decode()


def decode(text: str) -> dict[JobId, MeanShare]:
    try:
        sums = decoding.decode(text, dict[int, tuple[float, float]])
    except msgspec.DecodeError as error:
        log.warning("gpq cannot read the past fair shares of jobs and counts them again: %s", error)
        return {}
    return {JobId(job): MeanShare(*mean) for job, mean in sums.items()}
