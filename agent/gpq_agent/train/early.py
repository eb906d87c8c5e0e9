"""May the script leave job.epochs() by what it alone knows, as early stopping does by a count of bad epochs? And does it keep
a best value that a restart forgets? Read from the source of the loop, once, when it begins; what hides in functions is not found.
"""

import ast
import types
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Set, Tuple

import torch

from .loader import Loader
from .source import UNKNOWN, Body, Loop, Names, loops_of, name_of, reads, targets

PLAIN = (type(None), bool, int, float, str, list, tuple, dict, set, torch.Tensor)
ORDERS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
CLOCKS = ("time", "perf_counter", "monotonic", "now")
# Whose state is no score of the script's own, whatever they are asked.
NO_SCORES = (
    torch.nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler, torch.utils.data.DataLoader, Loader,
    types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType, type, *PLAIN,
)  # fmt: skip


class Watch(NamedTuple):
    """An object whose answer may end the loop, and what it held: that it changes shows that it counts."""

    name: str
    item: Any
    only: Tuple[str, ...]  # of its attributes; () for all
    before: Dict[str, Any]

    def changed(self) -> bool:
        return _plain_attributes(self.item, self.only) != self.before


class Found(NamedTuple):
    """`leaving`: names by which the loop may end, that begin anew after a restart; `counting`: those of them that are counted
    in a loop over the loader; `watched`: objects that may do the same; `best`: names of best values."""

    leaving: List[str]
    counting: List[str]
    watched: List[Watch]
    best: List[str]


NOTHING = Found([], [], [], [])


def look(frame: Any, parts: Iterable[Any]) -> Found:
    """What the loop does that asks job.epochs() for its first epoch, in `frame`. `parts`: whatever is in checkpoints."""
    try:
        held = {id(part) for part in parts}
        found = [_Reader(loop, held).found() for loop in loops_of(frame)]
    except Exception:  # what a script's source or objects may hold is endless: training goes on, whatever it is
        return NOTHING
    return Found(
        _once(name for each in found for name in each.leaving),
        _once(name for each in found for name in each.counting),
        [watch for each in found for watch in each.watched],
        _once(name for each in found for name in each.best),
    )


class _Reader:
    def __init__(self, loop: Loop, held: Set[int]) -> None:
        self._loop, self._held = loop, held
        self._body = Body(loop.node)
        self._kept = _kept(loop)
        self._changed = {change.name for change in self._body.changes}

    def found(self) -> Found:
        from_scores = self._tainted()
        leaving: Set[str] = set()
        watched: List[Watch] = []
        for leave in self._body.leaves:
            if any(self._never(test) for test in leave.tests):
                continue
            for test in (part for each in leave.tests for part in self._open(each)):
                leaving.update(*(from_scores[name] for name in reads(test) if name in from_scores))
                leaving.update(name for name in reads(test) if self._is_counted_by_methods(name))
                watched += self._watched(test)
        inner = {change.name for change in self._body.changes if any(map(self._is_loader, change.inside))}
        return Found(
            sorted(leaving - inner),
            sorted(leaving & inner),
            watched,
            [name for name in self._best() if name not in leaving],
        )

    # -- names ---------------------------------------------------------------------------------------------------------

    def _tainted(self) -> Dict[str, Set[str]]:
        """Names whose value hangs on what earlier epochs left in names of the script: on which."""
        found: Dict[str, Set[str]] = {name: {name} for name in self._counters()}
        roots = {name for name in self._body.carried if name in self._changed and self._is_own(name)}
        for change in self._body.changes:
            if change.name in roots and not change.constant:
                found.setdefault(change.name, {change.name})
        grown = True
        while grown:
            grown = False
            for change in self._body.changes:
                if change.name in self._kept:
                    continue
                hangs_on = {root for name in change.reads if name in found for root in found[name]}
                before = found.get(change.name, set())
                if not hangs_on <= before:
                    found[change.name] = before | hangs_on
                    grown = True
        return found

    def _counters(self) -> List[str]:
        """In `for index, epoch in enumerate(job.epochs(n))` the index begins anew."""
        node = self._loop.node
        if isinstance(node.iter, ast.Call) and name_of(node.iter.func) == "enumerate":
            return targets(node.target)[:1]
        return []

    def _is_own(self, name: str) -> bool:
        """A value that is there before the loop, which no checkpoint holds."""
        return isinstance(self._loop.value(name), PLAIN) and name not in self._kept and not self._owner_is_held(name)

    def _is_counted_by_methods(self, name: str) -> bool:
        """Does another method of this object, which the loop calls, make a new value of it from the old one?"""
        this = _self_name(self._loop)
        if not this or not name.startswith(this + ".") or this not in self._body.called or not self._is_own(name):
            return False
        return any(_makes_anew(node, name) for node in ast.walk(self._loop.tree))

    def _owner_is_held(self, name: str) -> bool:
        return any(id(owner) in self._held for owner in self._loop.owners(name))

    def _never(self, test: Any) -> bool:
        """Is this false for all of the loop, as an option that is off?"""
        if isinstance(test, ast.BoolOp):
            parts = [self._never(each) for each in test.values]
            return any(parts) if isinstance(test.op, ast.And) else all(parts)
        if reads(test) & (self._changed | self._body.called):
            return False
        return _evaluate(test, self._loop.value) is False

    def _open(self, test: Any) -> List[Any]:
        """The parts of a test that are not ruled out by an option that is off."""
        if not isinstance(test, ast.BoolOp) or isinstance(test.op, ast.And):
            return [] if self._never(test) else [test]
        return [part for each in test.values for part in self._open(each)]

    def _is_loader(self, node: ast.For) -> bool:
        return any(isinstance(self._loop.value(name), Loader) for name in reads(node.iter))

    # -- objects -------------------------------------------------------------------------------------------------------

    def _watched(self, test: Any) -> List[Watch]:
        """Objects that this asks for a yes or no, or whose counts it compares, and that the loop calls."""
        if isinstance(test, ast.BoolOp):
            return [watch for each in test.values for watch in self._watched(each)]
        if isinstance(test, ast.UnaryOp):
            return self._watched(test.operand)
        if isinstance(test, ast.NamedExpr):
            return self._watched(test.value)
        if isinstance(test, ast.Name) and test.id in self._body.calls:
            return self._watched(self._body.calls[test.id])
        if isinstance(test, ast.Call):
            owner = test.func.value if isinstance(test.func, ast.Attribute) else test.func
            return self._watch(
                name_of(owner), test.func.attr if isinstance(test.func, ast.Attribute) else "__call__", ""
            )
        if isinstance(test, ast.Attribute):
            return self._watch(name_of(test.value), "", test.attr)
        if isinstance(test, ast.Compare):
            sides = [each for each in (test.left, *test.comparators) if isinstance(each, ast.Attribute)]
            counts = [each for each in sides if type(self._loop.value(name_of(each))) is int]
            return [watch for each in counts for watch in self._watch(name_of(each.value), "", each.attr)]
        return []

    def _watch(self, name: str, method: str, attribute: str) -> List[Watch]:
        item = self._loop.value(name) if name else UNKNOWN
        if item is UNKNOWN or isinstance(item, NO_SCORES) or name not in self._body.called:
            return []
        if type(item).__module__.startswith("gpq_agent.") or id(item) in self._held or self._owner_is_held(name):
            return []
        only: Tuple[str, ...] = ()
        if name == _self_name(self._loop):  # a trainer has much that changes: what is asked counts
            if "{}.{}".format(name, attribute) in self._changed:
                return []
            called = getattr(getattr(type(item), method, None), "__code__", None)
            only = (attribute,) if attribute else tuple(called.co_names) if called is not None else ("",)
        return [Watch(name, item, only, _plain_attributes(item, only))]

    # -- best values ---------------------------------------------------------------------------------------------------

    def _best(self) -> List[str]:
        """Names that are compared, and set to what they were compared with."""
        found = []
        compared = _compared(self._loop.node)
        for node in ast.walk(self._loop.node):
            if not isinstance(node, ast.Assign) or len(node.targets) != 1:
                continue
            name = name_of(node.targets[0])
            values = _candidates(node.value)
            if any(name in names and value in values for names, value in compared) and self._is_own(name):
                found.append(name)
        return _once(found)


def _makes_anew(node: Any, name: str) -> bool:
    """Does this statement make a new value of the old one?"""
    if isinstance(node, ast.AugAssign):
        return name in targets(node.target)
    if not isinstance(node, ast.Assign) or name not in reads(node.value):
        return False
    return any(name in targets(target) for target in node.targets)


def _compared(loop: ast.For) -> List[Tuple[Names, str]]:
    """Of each comparison by size in the loop: the names of one side, and the other side's text."""
    found = []
    for node in ast.walk(loop):
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], ORDERS):
            for one, other in ((node.left, node.comparators[0]), (node.comparators[0], node.left)):
                if not any(word in CLOCKS for name in reads(other) for word in name.split(".")):
                    found.append((reads(one), ast.dump(_bare(other))))
    return found


def _candidates(value: Any) -> List[str]:
    """What a name is set to: the value, or those of max() and min()."""
    value = _bare(value)
    if isinstance(value, ast.Call) and name_of(value.func) in ("max", "min", "torch.maximum", "torch.minimum"):
        return [ast.dump(_bare(each)) for each in value.args]
    return [] if isinstance(value, ast.Constant) else [ast.dump(value)]


def _bare(node: Any) -> Any:
    """Without float() and .item() around it."""
    while isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute) and node.func.attr in ("item", "clone", "detach") and not node.args:
            node = node.func.value
        elif name_of(node.func) == "float" and len(node.args) == 1:
            node = node.args[0]
        else:
            break
    return node


def _kept(loop: Loop) -> Set[str]:
    """Names that the script keeps by job.state(), or restores in a way of its own. What an object holds, anywhere in the file."""
    found = _kept_below(ast.walk(loop.scope))
    found |= {name for name in _kept_below(ast.walk(loop.tree)) if "." in name}
    inside = {id(node) for node in ast.walk(loop.node)}
    for node in ast.walk(loop.scope):
        if isinstance(node, ast.Assign) and id(node) not in inside and _is_restored(node.value):
            found.update(name for target in node.targets for name in targets(target))
    return found


def _kept_below(nodes: Iterable[Any]) -> Set[str]:
    found: Set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Call) and _called(node) == "state" and node.args:
            for each in [*node.args[1:], *[keyword.value for keyword in node.keywords], node.args[0]]:
                found |= reads(each)
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and _asks_state(node.value):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                found.update(targets(target))
    return found


def _asks_state(value: Any) -> bool:
    calls = [each for each in ast.walk(value) if isinstance(each, ast.Call)] if value is not None else []
    return any(_called(each) == "state" for each in calls)


def _is_restored(value: Any) -> bool:
    """Is it taken out of something that was saved, as far as it looks?"""
    for node in ast.walk(value):
        if isinstance(node, ast.Subscript):
            return True
        if isinstance(node, ast.Call) and ("load" in _called(node) or _called(node) == "get"):
            return True
    return False


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else name_of(node.func)


def _self_name(loop: Loop) -> str:
    arguments = getattr(getattr(loop.scope, "args", None), "args", [])
    return arguments[0].arg if arguments and arguments[0].arg == "self" else ""


def _plain_attributes(item: Any, only: Tuple[str, ...]) -> Dict[str, Any]:
    """Numbers, texts and lengths of lists that an object holds."""
    found = {}
    for name, value in list(getattr(item, "__dict__", {}).items()):  # other threads may write there
        if only and name not in only:
            continue
        if isinstance(value, (bool, int, float, str, type(None))):
            found[name] = value if value == value else None  # not a number
        elif isinstance(value, (list, tuple, dict, set)):
            found[name] = len(value)
        elif isinstance(value, torch.Tensor) and value.numel() == 1:
            found[name] = float(value)
    return found


COMPARE: Dict[type, Callable[[Any, Any], Any]] = {
    ast.Lt: lambda a, b: a < b, ast.LtE: lambda a, b: a <= b, ast.Gt: lambda a, b: a > b, ast.GtE: lambda a, b: a >= b,
    ast.Eq: lambda a, b: a == b, ast.NotEq: lambda a, b: a != b, ast.Is: lambda a, b: a is b, ast.IsNot: lambda a, b: a is not b,
}  # fmt: skip


def _evaluate(node: Any, value_of: Callable[[str], Any]) -> Any:
    """A test of plain values: true or false, None if it cannot be told."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        found = _evaluate(node.operand, value_of)
        return None if found is None else not found
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in COMPARE:
        one, other = _plain(node.left, value_of), _plain(node.comparators[0], value_of)
        if one is UNKNOWN or other is UNKNOWN:
            return None
        try:
            return bool(COMPARE[type(node.ops[0])](one, other))
        except TypeError:  # the script asks first whether there is a number
            return None
    value = _plain(node, value_of)
    return None if value is UNKNOWN else bool(value)


def _plain(node: Any, value_of: Callable[[str], Any]) -> Any:
    """A number, a text or None; UNKNOWN for anything else."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
        return -node.operand.value  # type: ignore[operator]
    value = value_of(name_of(node)) if name_of(node) else UNKNOWN
    return value if isinstance(value, (bool, int, float, str, type(None))) else UNKNOWN


def _once(names: Iterable[str]) -> List[str]:
    return list(dict.fromkeys(names))
