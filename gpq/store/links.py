"""Links between servers as text. gpq measures again what it cannot read: losing a measurement does
no harm."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import msgspec

from gpq import decoding
from gpq.core.model.nodes import Link
from gpq.core.model.units import NodeId

log = logging.getLogger(__name__)


def encode(links: Mapping[tuple[NodeId, NodeId], Link]) -> str:
    return msgspec.json.encode([(*ends, link) for ends, link in sorted(links.items())]).decode()


def decode(text: str) -> dict[tuple[NodeId, NodeId], Link]:
    try:
        rows = decoding.decode(text, list[tuple[str, str, Link]])
    except msgspec.DecodeError as error:
        log.warning(
            "gpq cannot read the measurements between servers, `gpq doctor` repeats them: %s",
            error,
        )
        return {}
    return {(NodeId(first), NodeId(second)): link for first, second, link in rows}
