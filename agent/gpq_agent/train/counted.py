"""Does what a loop trains hang on a count of its own: the index of enumerate(), or a number that it counts up? Read from the
source of the loop over the loader, once. What hides in functions is not found; counts that only show or save are none.
"""

import ast
from typing import Any, List, Set

from .source import Body, Loop, Names, loops_of, name_of, reads, targets


def look(frame: Any) -> str:
    """The name of such a count of the loop that asks for batches in `frame`; "" if there is none."""
    try:
        found = [name for loop in loops_of(frame) for name in _counts(loop)]
    except Exception:  # what a script's source may hold is endless: training goes on, whatever it is
        return ""
    return found[0] if found else ""


def _counts(loop: Loop) -> List[str]:
    body = Body(loop.node)
    last, trained = _backward(loop.node)
    grown = True
    while grown:
        before = len(trained)
        for change in body.changes:
            # What is set after the last backward pass, and anew before the next, goes into none.
            if change.name in trained and (change.line <= last or change.name in body.carried):
                trained |= change.reads
        grown = len(trained) > before
    return sorted(_counters(loop, body) & trained)


def _backward(loop: ast.For) -> Any:
    """(line of the last backward pass, names of what is differentiated)."""
    last = 0
    found: Set[str] = set()
    for node in ast.walk(loop):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "backward":
            last = max(last, node.lineno)
            found |= _values(node.func.value)
            for given in node.args:
                found |= _values(given)
    return last, found


def _values(node: Any) -> Names:
    """What is differentiated there: of scaler.scale(loss) the loss."""
    if isinstance(node, ast.Call):
        return frozenset().union(*(reads(each) for each in node.args)) if node.args else reads(node)
    return reads(node)


def _counters(loop: Loop, body: Body) -> Set[str]:
    """Names that are counted up in the loop, whatever else it does."""
    found = {
        change.name
        for change in body.changes
        if change.name in body.carried and change.counts and "." not in change.name
    }
    node = loop.node
    if isinstance(node.iter, ast.Call) and name_of(node.iter.func) == "enumerate":
        found.update(targets(node.target)[:1])
    return found
