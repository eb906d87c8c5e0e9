"""The source of the loop that a frame is in: its names, what they are now, and in which order it reads and changes them.

Reads only: where there is no source, or it does not fit the running code, there is nothing to say.
"""

import ast
import gc
import inspect
import linecache
import sys
from collections import ChainMap
from typing import Any, Dict, FrozenSet, List, Mapping, NamedTuple, Optional, Set, Tuple

UNKNOWN: Any = object()
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
MUTATORS = ("append", "appendleft", "add", "extend", "insert", "update", "pop", "popleft", "setdefault")
BEGINNERS = ("reset", "clear")  # an object that is told this is new
Names = FrozenSet[str]


class Loop(NamedTuple):
    """`scope`: the function or module that it is in; `tree`: the whole file; `names`: what is known there, and what it is."""

    node: ast.For
    scope: Any
    tree: ast.Module
    names: Mapping[str, Any]

    def value(self, name: str) -> Any:
        """What this name is now; UNKNOWN if there is none, or only a property would tell."""
        return _value(ast.parse(name, mode="eval").body, self.names) if name else UNKNOWN

    def owners(self, name: str) -> List[Any]:
        """The objects that `a` and `a.b` of `a.b.c` are now."""
        node: Any = ast.parse(name, mode="eval").body
        found = []
        while isinstance(node, (ast.Attribute, ast.Subscript)):
            node = node.value
            found.append(_value(node, self.names))
        return [each for each in found if each is not UNKNOWN]


def loops_of(frame: Any) -> List[Loop]:
    """The for loops that ask an iterator for its next item now: of `frame`, and of who asks it where it passes items on."""
    found = []
    for _ in range(8):
        if frame is None:
            break
        loop = _loop_at(frame)
        if loop is not None:
            found.append(loop)
        if not frame.f_code.co_flags & inspect.CO_GENERATOR and frame.f_code.co_name != "__next__":
            break
        frame = frame.f_back
    return found


def _loop_at(frame: Any) -> Optional[Loop]:
    text = "".join(linecache.getlines(frame.f_code.co_filename, frame.f_globals))
    if not text:
        return None
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return None
    best: Optional[Tuple[Any, Any]] = None
    waiting: List[Any] = [(tree, tree)]
    while waiting:
        node, scope = waiting.pop()
        if isinstance(node, ast.For) and node.lineno <= frame.f_lineno <= (node.iter.end_lineno or 0):
            name = scope.name if isinstance(scope, FUNCTIONS) else "<module>"
            if name == frame.f_code.co_name and (best is None or node.lineno >= best[0].lineno):
                best = (node, scope)
        inside = node if isinstance(node, FUNCTIONS) else scope
        waiting += [(child, inside) for child in ast.iter_child_nodes(node)]
    return None if best is None else Loop(best[0], best[1], tree, ChainMap(_locals(frame), frame.f_globals))


def _locals(frame: Any) -> Dict[str, Any]:
    """A function's names. Before Python 3.13 the dictionary that a frame gives is the one that `locals()` gave to the script:
    it is left as it was, and holds on to nothing."""
    if sys.version_info >= (3, 13) or not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        return dict(frame.f_locals)
    before = [(each, dict(each)) for each in gc.get_referents(frame) if type(each) is dict]
    shared = frame.f_locals
    found = dict(shared)
    kept = next((copied for each, copied in before if each is shared), {})
    shared.clear()
    shared.update(kept)
    return found


# -- names -------------------------------------------------------------------------------------------------------------


def name_of(node: Any) -> str:
    """`bad`, `self.bad` or `state['bad']` as one name; "" for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    base = name_of(node.value) if isinstance(node, (ast.Attribute, ast.Subscript)) else ""
    if not base:
        return ""
    if isinstance(node, ast.Attribute):
        return "{}.{}".format(base, node.attr)
    index = _index(node)
    return "" if index is None else "{}[{!r}]".format(base, index)


def reads(node: Any) -> Names:
    """The names in an expression: of `a.b.c` also `a` and `a.b`. Not of `a[-1]`, which has just been put there."""
    found = set()
    waiting = [node]
    while waiting:
        each = waiting.pop()
        if isinstance(each, (ast.Name, ast.Attribute, ast.Subscript)):
            found.add(name_of(each))
        if not (isinstance(each, ast.Subscript) and ast.dump(each.slice).count("USub") and name_of(each.value)):
            waiting += ast.iter_child_nodes(each)
    return frozenset(found - {""})


def targets(node: Any) -> List[str]:
    """The names that an assignment to this sets."""
    if isinstance(node, (ast.Tuple, ast.List)):
        return [name for each in node.elts for name in targets(each)]
    if isinstance(node, ast.Starred):
        return targets(node.value)
    return [name_of(node)] if name_of(node) else []


def _value(node: Any, names: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.Name):
        return names.get(node.id, UNKNOWN)
    base = _value(node.value, names)
    if base is UNKNOWN:
        return UNKNOWN
    if isinstance(node, ast.Attribute):
        held = getattr(base, "__dict__", None)
        return held.get(node.attr, UNKNOWN) if isinstance(held, dict) else UNKNOWN
    return base.get(_index(node), UNKNOWN) if isinstance(base, dict) else UNKNOWN


def _index(node: Any) -> Any:
    """The text that a subscript names; None if it is no plain text."""
    index = node.slice.value if type(node.slice).__name__ == "Index" else node.slice  # before Python 3.9
    return index.value if isinstance(index, ast.Constant) and isinstance(index.value, str) else None


# -- what the body of a loop does --------------------------------------------------------------------------------------


class Change(NamedTuple):
    """`reads`: what the new value is made of, with the tests above it in the loop. `inside`: loops within the loop. `counts`:
    it is the old one and a number."""

    name: str
    reads: Names
    constant: bool
    inside: List[ast.For]
    line: int
    counts: bool


class Leave(NamedTuple):
    """A break, return or exit: the tests above it in the loop."""

    tests: List[Any]


class Body:
    """`carried`: names that are read before a pass has set them anew, so that they come from the pass before.

    An approximation: what one branch sets counts as set when it is only read, but not when it is counted up.
    """

    def __init__(self, loop: ast.For) -> None:
        self.changes: List[Change] = []
        self.leaves: List[Leave] = []
        self.carried: Set[str] = set()
        self.called: Set[str] = set()  # objects that are called, or have a method called
        self.calls: Dict[str, Any] = {}  # name: the call that it was last set from
        self._sure: Set[str] = set(targets(loop.target))
        self._perhaps = set(self._sure)
        self._tests: List[Any] = []
        self._inside: List[ast.For] = []
        self._line = loop.lineno
        self._is_count = False  # the statement in hand counts
        self._own = True  # would a break end the loop?
        self._anew: Set[str] = set()  # of the objects, those that are told to begin anew
        self._walk(loop.body)
        self.called -= self._anew

    def _walk(self, statements: List[Any]) -> None:
        for each in statements:
            self._step(each)

    def _step(self, node: Any) -> None:
        self._line = node.lineno
        self._is_count = isinstance(node, (ast.Assign, ast.AugAssign)) and _adds_number(node.value)
        if isinstance(node, SCOPES):
            return
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            if node.value is not None:
                self._read(node.value)
                found = node.targets if isinstance(node, ast.Assign) else [node.target]
                for each in found:
                    self._set(each, node.value)
        elif isinstance(node, ast.AugAssign):
            self._read(node.value)
            for name in targets(node.target):
                self._change(name, reads(node.value) | {name}, constant=False)
        elif isinstance(node, ast.If):
            self._branch(node)
        elif isinstance(node, (ast.For, ast.AsyncFor, ast.While)):
            self._loop(node)
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            for item in node.items:
                self._read(item.context_expr)
                if item.optional_vars is not None:
                    self._set(item.optional_vars, item.context_expr)
            self._walk(node.body)
        elif isinstance(node, ast.Try):
            self._walk(node.body)
            for handler in node.handlers:
                self._walk(handler.body)
            self._walk(node.orelse)
            self._walk(node.finalbody)
        else:
            self._read(node)
            ends = isinstance(node, ast.Break) and self._own
            if ends or isinstance(node, ast.Return) or _is_exit(node):
                self.leaves.append(Leave(list(self._tests)))

    def _branch(self, node: ast.If) -> None:
        self._read(node.test)
        self._tests.append(node.test)
        before = set(self._sure)
        self._walk(node.body)
        after, self._sure = self._sure, set(before)
        self._walk(node.orelse)
        self._sure &= after
        self._tests.pop()

    def _loop(self, node: Any) -> None:
        own, self._own = self._own, False
        before = set(self._sure)
        if isinstance(node, ast.While):
            self._read(node.test)
            self._tests.append(node.test)
            self._walk(node.body)
            self._tests.pop()
        else:
            self._read(node.iter)
            self._set(node.target, node.iter)
            self._inside.append(node)
            self._walk(node.body)
            self._inside.pop()
        self._sure = before
        self._own = own
        self._walk(node.orelse)

    def _set(self, target: Any, value: Any) -> None:
        for name in targets(target):
            self._change(name, reads(value), constant=_is_constant(value))
            self._sure.add(name)
            if isinstance(value, ast.Call):
                self.calls[name] = value

    def _change(self, name: str, found: Names, *, constant: bool) -> None:
        counts = self._is_count and found == {name}
        if name in found and name not in self._sure:
            self.carried.add(name)
        for test in self._tests:
            found |= reads(test)
        self.changes.append(Change(name, found, constant, list(self._inside), self._line, counts))
        self._perhaps.add(name)

    def _read(self, node: Any) -> None:
        self.carried |= reads(node) - self._perhaps
        for each in ast.walk(node):
            if isinstance(each, ast.NamedExpr):
                self._set(each.target, each.value)
            if not isinstance(each, ast.Call):
                continue
            owner = each.func.value if isinstance(each.func, ast.Attribute) else each.func
            name = name_of(owner)
            if not name:
                continue
            self.called.add(name)
            method = each.func.attr if isinstance(each.func, ast.Attribute) else ""
            if method in BEGINNERS:
                self._sure.add(name)
                self._perhaps.add(name)
                self._anew.add(name)
            elif method in MUTATORS:
                given = [*each.args, *[keyword.value for keyword in each.keywords]]
                self._change(name, frozenset({name}.union(*(reads(item) for item in given))), constant=False)


def _adds_number(value: Any) -> bool:
    """Is it a number, or a sum with one?"""
    if isinstance(value, ast.BinOp):
        return isinstance(value.op, (ast.Add, ast.Sub)) and any(map(_adds_number, (value.left, value.right)))
    return isinstance(value, ast.Constant) and isinstance(value.value, (int, float))


def _is_exit(node: Any) -> bool:
    if isinstance(node, ast.Raise):
        return "SystemExit" in (reads(node.exc) if node.exc is not None else ())
    call = node.value if isinstance(node, ast.Expr) else None
    return isinstance(call, ast.Call) and name_of(call.func) in ("sys.exit", "exit", "quit", "os._exit")


def _is_constant(node: Any) -> bool:
    if isinstance(node, (ast.Tuple, ast.List)):
        return all(_is_constant(each) for each in node.elts)
    return isinstance(node, ast.Constant) or (isinstance(node, ast.UnaryOp) and _is_constant(node.operand))
