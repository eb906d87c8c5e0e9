"""Reads the messages between a member's daemon and an arbiter, which `codec` writes. Neither side
trusts the other, so both check the bounds of a message before its types.

It is apart from `codec` because `gpq status` imports that, and has no time for the types of
claims."""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Any, TypeVar

import msgspec

from gpq.errors import Refused, UsageError
from gpq.rpc import codec
from gpq.rpc.team_messages import MAX_DEPTH, TeamRequest

R = TypeVar("R")

LONGEST_TEXT = 1000  # characters
MOST_ITEMS = 2500  # of a list, such as the claims of a member
MOST = 1 << 53  # of any number. Beyond it JSON and floats are not exact
ARBITER = codec.Server("the arbiter", "it and all members need the same version of gpq")
AnyTeamRequest: Any = reduce(or_, TeamRequest.__subclasses__())


def decode_team_request(line: bytes) -> TeamRequest:
    """The request on a line. Raises DaemonUnreachable for another version, and UsageError if the
    line is malformed or out of bounds."""
    tree = codec.request_tree(line, ARBITER)
    if not within_bounds(tree):
        raise UsageError(
            "the request is too deep, or has a list, a number or a text that is out of bounds",
            f"lists have at most {MOST_ITEMS} items, numbers are at most 2^53, and texts have at"
            f" most {LONGEST_TEXT} printable characters",
        )
    request: TeamRequest = codec.request_of(tree, AnyTeamRequest, ARBITER)
    return request


def decode_team_answer(line: bytes, kind: type[R]) -> R:
    """The result on a line. Raises the arbiter's own GpqError, DaemonUnreachable for another
    version, and Refused if it is out of bounds."""
    try:
        is_sound = within_bounds(msgspec.json.decode(line))
    except (ValueError, RecursionError):
        is_sound = False
    if not is_sound:
        raise Refused("the arbiter's answer is no JSON, or it is out of bounds")
    return codec.decode_answer(line, kind, ARBITER)


def within_bounds(tree: object, depth: int = MAX_DEPTH) -> bool:
    """Is no container of this decoded JSON nested deeper than `depth`, none too long, every number
    finite and at most 2^53, and every text short and printable?"""
    if isinstance(tree, str):
        return len(tree) <= LONGEST_TEXT and tree.isprintable()
    if isinstance(tree, (int, float)):
        return abs(tree) <= MOST
    if isinstance(tree, (list, dict)) and (depth == 0 or len(tree) > MOST_ITEMS):
        return False
    if isinstance(tree, dict):
        tree = [*tree, *tree.values()]
    if isinstance(tree, list):
        return all(within_bounds(item, depth - 1) for item in tree)
    return tree is None
