"""Hints from the source of a script: what a restart resets. Values by which a loop over
job.epochs() may end or that it keeps as its best, averages of the weights, and a GradScaler.

Pure: text in, lines out. A hint takes no freedom from a job. It reads only one file and follows no
calls, so it does not see what a function counts in its own variable.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

MOST = 5  # hints
MOST_READ = 1 << 20  # characters
EPOCHS = "epochs"  # of a job
NUMBERS = ("float", "int", "list", "dict", "set", "deque")  # these make a plain value
# Attributes of a job that survive a restart.
ASKS = ("step", "progress", "should_stop", "done", "epoch", "samples")
LIBRARIES = ("torch", "nn", "optim", "np", "numpy")
# Calls that copy weights.
COPIERS = re.compile(r"deepcopy|clone|AveragedModel|\w*(EMA|Ema(?![a-z])|MovingAverage)\w*")
UPDATES = ("update", "update_parameters")  # methods of averages, besides those that end with "_"
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
LOOPS = (ast.For, ast.AsyncFor, ast.While)
Loop = ast.For | ast.AsyncFor


@dataclass
class Source:
    """What the whole file says, by name.

    plain: the line that makes it a number or a collection. objects: the line that makes it an
    instance of a class. copies: the line that copies weights. scalers: the line that makes it a
    GradScaler. state_names: names passed to job.state() or job.prepare().
    """

    plain: dict[str, int] = field(default_factory=dict)
    objects: dict[str, int] = field(default_factory=dict)
    copies: dict[str, int] = field(default_factory=dict)
    scalers: dict[str, int] = field(default_factory=dict)
    state_names: set[str] = field(default_factory=set)
    changed_by_methods: set[str] = field(default_factory=set)


def hints(text: str) -> list[str]:
    """One line per hint. None if the text cannot be parsed."""
    try:
        tree = ast.parse(text[:MOST_READ])
    except (SyntaxError, ValueError, RecursionError):
        return []
    source = _read(tree)
    lines_by_name: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, Loop) and any(_is_epochs(part) for part in ast.walk(node.iter)):
            for name, line in _hints(node, source):
                lines_by_name.setdefault(name, line)
    return list(lines_by_name.values())[:MOST]


def _read(tree: ast.Module) -> Source:
    source = Source()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name != "__init__":
            source.changed_by_methods |= _own_changes(node)
        if isinstance(node, ast.Call) and _attribute(node) in ("state", "prepare"):
            source.state_names |= _argument_names(node)
        for target, value in _assignments(node):
            _note(source, _name(target), value, node.lineno)  # type: ignore[attr-defined]
    return source


def _own_changes(method: ast.FunctionDef) -> set[str]:
    """Attributes of its own object that a method changes."""
    changes = {name for part in ast.walk(method) for name, _ in _moves(part)}
    return {name for name in changes if name.startswith("self.")}


def _argument_names(call: ast.Call) -> set[str]:
    """All names in the arguments of a call, and its string arguments."""
    arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
    constants = [argument for argument in arguments if isinstance(argument, ast.Constant)]
    texts = {constant.value for constant in constants if isinstance(constant.value, str)}
    return texts.union(*map(_names, arguments))


def _note(source: Source, name: str, value: ast.expr, line: int) -> None:
    """Note what an assignment says about a name."""
    if not name:
        return
    if _is_kept(value):
        source.state_names.add(name)
        return
    if "GradScaler" in _called(value):
        source.scalers.setdefault(name, line)
    elif any(map(COPIERS.fullmatch, _called(value))):
        source.copies.setdefault(name, line)
    if _is_plain(value):
        source.plain.setdefault(name, line)
    elif _is_instance(value):
        source.objects.setdefault(name, line)


def _hints(loop: Loop, source: Source) -> Iterator[tuple[str, str]]:
    """(name, hint) for each value by which this loop may end, and for its best values."""
    carried, numbers = _carried(loop, source), _numbered(loop)
    exit_names: set[str] = set()
    for line, tests in _leaves(loop.body, []):
        names = set[str]().union(*map(_names, tests))
        if any("." in name and name.split(".")[-1] in ASKS for name in names):
            continue
        exit_names |= names
        instances = _instances(tests, source, loop)
        yield from _exit_hints(line, names & carried, names & numbers, instances)
    yield from _best_hints(loop, carried - exit_names)
    yield from _average_hints(loop, source)
    for name in sorted(source.scalers.keys() - source.state_names):
        scaler = f"line {source.scalers[name]}: a restart of the job resets the scale of `{name}`: "
        yield name, scaler + f"call job.prepare(model, optimizer, scaler={name})"


def _exit_hints(
    line: int, carried: set[str], numbers: set[str], instances: set[str]
) -> Iterator[tuple[str, str]]:
    end = f"line {line}: a restart of the job resets `{{}}`, by which the loop may end: "
    for name in sorted(carried):
        yield name, end.format(name) + _cure(name)
    for name in sorted(numbers):
        yield name, end.format(name) + "use the epoch that job.epochs() yields"
    for name in sorted(instances):
        yield name, end.format(name) + f"add {name} = job.state({name}) before the loop"


def _best_hints(loop: Loop, carried: set[str]) -> Iterator[tuple[str, str]]:
    """For values that change under a test of themselves."""
    for node in _inside(loop.body):
        if not isinstance(node, ast.If):
            continue
        parts = (part for statement in node.body for part in _inside([statement]))
        changes = {name for part in parts for name, _ in _moves(part)}
        for name in sorted(_names(node.test) & changes & carried):
            best = (
                f"line {node.lineno}: a restart of the job resets `{name}`, the best value so far: "
            )
            yield name, best + _cure(name)


def _average_hints(loop: Loop, source: Source) -> Iterator[tuple[str, str]]:
    """For copies of weights from before the loop that it updates."""
    names = {name for node in _inside(loop.body) for name in _updated(node)} - source.state_names
    for name in sorted(names):
        line = source.copies.get(name, loop.lineno)
        if line < loop.lineno:
            average = f"line {line}: a restart of the job resets `{name}`, an average of weights: "
            cure = "make it a module (AveragedModel), call job.state() with it before the loop"
            yield name, f"{average}{cure}, and update it only if job.at_step"


def _updated(node: ast.AST) -> set[str]:
    """Names whose tensors this node changes in place."""
    if isinstance(node, ast.For):
        targets, iterables = [node.target], [node.iter]
        if isinstance(node.iter, ast.Call) and isinstance(node.target, ast.Tuple):
            targets, iterables = node.target.elts, node.iter.args
        changes = set[str]().union(*(_updated(part) for part in _inside(node.body)))
        pairs = zip(targets, iterables, strict=False)
        changed = [item for target, item in pairs if _names(target) & changes]
        return set[str]().union(*map(_names, changed))
    if isinstance(node, ast.Assign | ast.AugAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return {_name(item.value) for item in targets if isinstance(item, ast.Subscript)} - {""}
    method = _attribute(node)
    if not isinstance(node, ast.Call) or not (method in UPDATES or method.endswith("_")):
        return set()
    return _names(node.func).union(*map(_names, node.args[:1] if method.startswith("_") else []))


def _called(value: ast.expr) -> list[str]:
    """The last names of everything that an expression calls."""
    calls = [node.func for node in ast.walk(value) if isinstance(node, ast.Call)]
    return [item.attr if isinstance(item, ast.Attribute) else _name(item) for item in calls]


def _cure(name: str) -> str:
    short = name.split(".")[-1]
    return (
        f"add {name} = job.state({short!r}, {name}) before the loop, and job.state({short!r},"
        f" {name}) where it changes"
    )


def _carried(loop: Loop, source: Source) -> set[str]:
    """Plain values from before the loop that it changes, and everything computed from them."""
    changes = [(name, value) for node in _inside(loop.body) for name, value in _moves(node)]
    names = {name for name, _ in changes if source.plain.get(name, loop.lineno) < loop.lineno}
    names |= source.changed_by_methods & source.plain.keys()
    formulas = [
        (name, _names(value))
        for name, value in changes
        if name not in source.state_names and value and not isinstance(value, ast.Constant)
    ]
    return _with_results(names - source.state_names, formulas)


def _with_results(names: set[str], formulas: list[tuple[str, set[str]]]) -> set[str]:
    """These names, and the names of everything computed from them. formulas: (name, its terms)."""
    has_grown = True
    while has_grown:
        results = {name for name, terms in formulas if terms & names}
        has_grown = not results <= names
        names |= results
    return names


def _instances(tests: list[ast.expr], source: Source, loop: Loop) -> set[str]:
    """Instances of the script's own classes that a test calls or reads an attribute of."""
    bases = {_base(node) for test in tests for node in ast.walk(test)} - source.state_names
    return {name for name in bases if source.objects.get(name, loop.lineno) < loop.lineno}


def _base(node: ast.AST) -> str:
    """`a` for `a()` and `a.b`, "" for anything else."""
    if not isinstance(node, ast.Call | ast.Attribute):
        return ""
    base: ast.AST = node
    if isinstance(base, ast.Call):
        base = base.func
    while isinstance(base, ast.Attribute):
        base = base.value
    return base.id if isinstance(base, ast.Name) else ""


def _numbered(loop: Loop) -> set[str]:
    """The name that enumerate() numbers epochs with."""
    call = loop.iter
    is_numbered = isinstance(call, ast.Call) and _name(call.func) == "enumerate"
    if is_numbered and isinstance(loop.target, ast.Tuple) and loop.target.elts:
        return {_name(loop.target.elts[0])}
    return set()


def _leaves(body: list[ast.stmt], tests: list[ast.expr]) -> Iterator[tuple[int, list[ast.expr]]]:
    """(line, the tests that lead there) for each exit from the loop.

    A break counts in inner loops too, because they run within one epoch.
    """
    for statement in body:
        if isinstance(statement, ast.Break | ast.Return) and tests:
            yield statement.lineno, tests
        elif isinstance(statement, ast.If):
            yield from _leaves(statement.body, [*tests, statement.test])
            yield from _leaves(statement.orelse, [*tests, statement.test])
        elif isinstance(statement, (*LOOPS, ast.With, ast.Try)):
            for inner in ("body", "orelse", "finalbody"):
                yield from _leaves(getattr(statement, inner, []), tests)


def _inside(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """All nodes except those in functions and classes defined there."""
    stack: list[ast.AST] = list(body)
    while stack:
        node = stack.pop()
        if not isinstance(node, SCOPES):
            yield node
            stack += ast.iter_child_nodes(node)


def _assignments(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                yield from zip(target.elts, node.value.elts, strict=False)
            else:
                yield target, node.value
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        yield node.target, node.value


def _moves(node: ast.AST) -> Iterator[tuple[str, ast.expr | None]]:
    """(name, its new value) for each name that a node changes. None for a call of its method."""
    for target, value in _assignments(node):
        yield _name(target), value
    if isinstance(node, ast.AugAssign):
        yield _name(node.target), node.value
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        yield _name(node.func.value), None


def _attribute(node: ast.AST) -> str:
    """`b` for a call of a.b(), "" for anything else."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr
    return ""


def _is_epochs(node: ast.AST) -> bool:
    return _attribute(node) == EPOCHS


def _is_kept(value: ast.expr) -> bool:
    return _attribute(value) == "state"


def _is_plain(value: ast.expr) -> bool:
    if isinstance(value, ast.UnaryOp):
        return _is_plain(value.operand)
    if isinstance(value, ast.Call):
        return _name(value.func).split(".")[-1] in NUMBERS
    return isinstance(value, ast.Constant | ast.List | ast.Dict | ast.Set) or _name(value).endswith(
        ".inf"
    )


def _is_instance(value: ast.expr) -> bool:
    """Is it a call of a class by its capital letter, and not one of torch's?"""
    if not isinstance(value, ast.Call):
        return False
    parts = _name(value.func).split(".")
    return parts[-1][:1].isupper() and parts[0] not in LIBRARIES


def _name(node: ast.AST) -> str:
    """`a` or `self.a`, "" for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        base = _name(node.value)
        return f"{base}.{node.attr}" if base else ""
    return ""


def _names(node: ast.AST) -> set[str]:
    """All names that it reads, including the owners of attributes."""
    return {name for part in ast.walk(node) if (name := _name(part))}
