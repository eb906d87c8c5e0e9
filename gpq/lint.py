"""Hints from the source of a script: what a loop over job.epochs() may end by, or keeps as its
best, and forgets when gpq restarts it. Pure: text in, lines out. A hint takes nothing away from a
job.

Reads the one file, and follows no calls: what a function counts in a variable of its own is not
seen.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

MOST = 5  # hints
MOST_READ = 1 << 20  # characters
EPOCHS = "epochs"  # of a job
NUMBERS = ("float", "int", "list", "dict", "set", "deque")  # what makes a plain value
# of a job: these outlive a restart
ASKS = ("step", "progress", "should_stop", "done", "epoch", "samples")
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
LOOPS = (ast.For, ast.AsyncFor, ast.While)
Loop = ast.For | ast.AsyncFor


@dataclass
class Source:
    """What the whole file says. `plain`: lines in which a name is made a number or a collection;
    `objects`: names of instances of classes; `state_names`: names that job.state() or job.prepare()
    was given."""

    plain: dict[str, int] = field(default_factory=dict)
    objects: dict[str, int] = field(default_factory=dict)
    state_names: set[str] = field(default_factory=set)
    changed_by_methods: set[str] = field(default_factory=set)


def hints(text: str) -> list[str]:
    """A line each. Of what cannot be parsed: none."""
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
            changes = (name for part in ast.walk(node) for name, _ in _moves(part))
            source.changed_by_methods.update(name for name in changes if name.startswith("self."))
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("state", "prepare")
        ):
            arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
            source.state_names.update(name for argument in arguments for name in _names(argument))
            source.state_names.update(
                argument.value
                for argument in arguments
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
            )
        for target, value in _assignments(node):
            name = _name(target)
            if not name:
                continue
            if _is_kept(value):
                source.state_names.add(name)
            elif _is_plain(value):
                source.plain.setdefault(name, node.lineno)  # type: ignore[attr-defined]
            elif _is_instance(value):
                source.objects.setdefault(name, node.lineno)  # type: ignore[attr-defined]
    return source


def _hints(loop: Loop, source: Source) -> Iterator[tuple[str, str]]:
    """(name, hint) of all by which this loop may end, and of its best values."""
    carried, numbers = _carried(loop, source), _numbered(loop)
    exit_names: set[str] = set()
    for line, tests in _leaves(loop.body, []):
        names = {name for test in tests for name in _names(test)}
        if any("." in name and name.split(".")[-1] in ASKS for name in names):
            continue
        exit_names |= names
        end = (
            f"line {line}: the loop may end by `{{}}`, which begins anew when gpq restarts the"
            " job: "
        )
        for name in sorted(names & carried):
            yield name, end.format(name) + _cure(name)
        for name in sorted(names & numbers):
            yield name, end.format(name) + "job.epochs() itself gives the number of the epoch"
        for name in sorted(_instances(tests, source, loop)):
            yield name, end.format(name) + f"{name} = job.state({name}) before the loop"
    for node in _inside(loop.body):
        if isinstance(node, ast.If):
            changes = {
                name
                for statement in node.body
                for inner in _inside([statement])
                for name, _ in _moves(inner)
            }
            for name in sorted(_names(node.test) & changes & carried - exit_names):
                best = (
                    f"line {node.lineno}: `{name}`, the best so far, begins anew when gpq restarts"
                    " the job: "
                )
                yield name, best + _cure(name)


def _cure(name: str) -> str:
    short = name.split(".")[-1]
    return (
        f"{name} = job.state({short!r}, {name}) before the loop, and job.state({short!r}, {name})"
        " where it changes"
    )


def _carried(loop: Loop, source: Source) -> set[str]:
    """Plain values from before the loop that it changes, and what it computes of these."""
    changes = [(name, value) for node in _inside(loop.body) for name, value in _moves(node)]
    names = {
        name
        for name, _ in changes
        if source.plain.get(name, loop.lineno) < loop.lineno and name not in source.state_names
    }
    names |= {
        name
        for name in source.changed_by_methods
        if name in source.plain and name not in source.state_names
    }
    has_grown = True
    while has_grown:
        derived_names = {
            name for name, value in changes
            if value is not None
            and name not in source.state_names
            and not isinstance(value, ast.Constant)
            and _names(value) & names
        }  # fmt: skip
        has_grown = not derived_names <= names
        names |= derived_names
    return names


def _instances(tests: list[ast.expr], source: Source, loop: Loop) -> set[str]:
    """Of classes of the script's, that a test calls or asks for an attribute."""
    bases = set()
    for test in tests:
        for node in ast.walk(test):
            base = node.func if isinstance(node, ast.Call) else node
            while isinstance(base, ast.Attribute):
                base = base.value
            if isinstance(node, ast.Call | ast.Attribute) and isinstance(base, ast.Name):
                bases.add(base.id)
    return {
        name
        for name in bases
        if source.objects.get(name, loop.lineno) < loop.lineno and name not in source.state_names
    }


def _numbered(loop: Loop) -> set[str]:
    """What enumerate() numbers epochs by."""
    call = loop.iter
    is_numbered = isinstance(call, ast.Call) and _name(call.func) == "enumerate"
    if is_numbered and isinstance(loop.target, ast.Tuple) and loop.target.elts:
        return {_name(loop.target.elts[0])}
    return set()


def _leaves(body: list[ast.stmt], tests: list[ast.expr]) -> Iterator[tuple[int, list[ast.expr]]]:
    """(line, the tests that lead there) of each way out of the loop; a break counts in loops within
    it too, since those are of one epoch."""
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
    """All nodes but those of functions and classes that are defined there."""
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
    """(name, what it becomes) of each that a node changes; None where a method of it is called."""
    for target, value in _assignments(node):
        yield _name(target), value
    if isinstance(node, ast.AugAssign):
        yield _name(node.target), node.value
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        yield _name(node.func.value), None


def _is_epochs(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == EPOCHS
    )


def _is_kept(value: ast.expr) -> bool:
    return (
        isinstance(value, ast.Call)
        and isinstance(value.func, ast.Attribute)
        and value.func.attr == "state"
    )


def _is_plain(value: ast.expr) -> bool:
    if isinstance(value, ast.UnaryOp):
        return _is_plain(value.operand)
    if isinstance(value, ast.Call):
        return _name(value.func).split(".")[-1] in NUMBERS
    return isinstance(value, ast.Constant | ast.List | ast.Dict | ast.Set) or _name(value).endswith(
        ".inf"
    )


def _is_instance(value: ast.expr) -> bool:
    """Of a class that is called so, and is not torch's."""
    name = _name(value.func) if isinstance(value, ast.Call) else ""
    return name.split(".")[-1][:1].isupper() and name.split(".")[0] not in (
        "torch",
        "nn",
        "optim",
        "np",
        "numpy",
    )


def _name(node: ast.AST) -> str:
    """`a`, `self.a`; "" for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        base = _name(node.value)
        return f"{base}.{node.attr}" if base else ""
    return ""


def _names(node: ast.AST) -> set[str]:
    """All that it reads, with the names that they are attributes of."""
    return {name for part in ast.walk(node) if (name := _name(part))}
