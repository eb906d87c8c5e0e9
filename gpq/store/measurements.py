"""Links between servers and average shares over the lives of jobs, as text. gpq measures or counts
again what it cannot read, so no fact is lost."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import msgspec

from gpq import decoding
from gpq.core.model.accounts import MeanShare
from gpq.core.model.nodes import Link
from gpq.core.model.units import JobId, NodeId

log = logging.getLogger(__name__)


def encode_links(links: Mapping[tuple[NodeId, NodeId], Link]) -> str:
    return msgspec.json.encode([(*ends, link) for ends, link in sorted(links.items())]).decode()


def decode_links(text: str) -> dict[tuple[NodeId, NodeId], Link]:
    try:
        rows = decoding.decode(text, list[tuple[str, str, Link]])
    except msgspec.DecodeError as error:
        log.warning(
            "gpq cannot read the measurements between servers, `gpq doctor` repeats them: %s",
            error,
        )
        return {}
    return {(NodeId(first), NodeId(second)): link for first, second, link in rows}


def encode_shares(means: Mapping[JobId, MeanShare]) -> str:
    """GPU-seconds and seconds, to the tenth."""
    short = {
        int(job): (round(mean.gpu_seconds, 1), round(mean.seconds, 1))
        for job, mean in sorted(means.items())
    }
    return msgspec.json.encode(short).decode()


def decode_shares(text: str) -> dict[JobId, MeanShare]:
    try:
        sums = decoding.decode(text, dict[int, tuple[float, float]])
    except msgspec.DecodeError as error:
        log.warning("gpq cannot read the past fair shares of jobs and counts them again: %s", error)
        return {}
    return {JobId(job): MeanShare(*mean) for job, mean in sums.items()}
