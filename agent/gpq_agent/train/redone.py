"""What the head of an epoch does again after a restart in the midst of one, as far as only the source of the loop tells:
rates that are made of themselves, copies of the model for the epoch to come. What changes weights is the business of heads.py.
"""

import ast
from typing import Any, Iterator, List, Tuple

import torch

from .loader import Loader
from .source import SCOPES, Loop, Names, name_of, reads, targets

PLACES = ("progress", "samples")  # a test that reads these asks whether the epoch begins
COPIES = ("deepcopy",)


def look(loop: Loop) -> str:
    """What is done again, "" if nothing is seen."""
    head, rest = _split(loop)
    used: Names = frozenset().union(*(reads(node) for node in rest)) if rest else frozenset()
    for node in _unguarded(head):
        if isinstance(node, ast.AugAssign) and _is_rate(node.target):
            return "changes the learning rate"
        if not isinstance(node, ast.Assign):
            continue
        if any(map(_is_rate, node.targets)) and any(map(_is_rate, ast.walk(node.value))):
            return "changes the learning rate"
        made = {name for target in node.targets for name in targets(target)}
        if made & used and _copies_model(node.value, loop):
            return "copies the model"
    return ""


def _split(loop: Loop) -> Tuple[List[Any], List[Any]]:
    """Statements before the first that has to do with the loader, and that one."""
    for at, statement in enumerate(loop.node.body):
        if any(isinstance(loop.value(name), Loader) for name in reads(statement) if "[" not in name):
            return loop.node.body[:at], [statement]
    return [], []


def _unguarded(nodes: List[Any]) -> Iterator[Any]:
    for node in nodes:
        if isinstance(node, SCOPES):
            continue
        yield node
        if isinstance(node, ast.If) and any(word in PLACES for name in reads(node.test) for word in name.split(".")):
            yield from _unguarded(node.orelse)
        else:
            yield from _unguarded(list(ast.iter_child_nodes(node)))


def _is_rate(node: Any) -> bool:
    """`group["lr"]`, of whatever."""
    return isinstance(node, ast.Subscript) and "'lr'" in ast.dump(node.slice)


def _copies_model(value: Any, loop: Loop) -> bool:
    for node in ast.walk(value):
        if isinstance(node, ast.Call) and name_of(node.func).split(".")[-1] in COPIES:
            return any(isinstance(loop.value(name), torch.nn.Module) for each in node.args for name in reads(each))
    return False
