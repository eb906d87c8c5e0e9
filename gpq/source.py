"""The one reader of the user's source: texts of files, what they show, and hints about it.

It follows no calls, so it does not see what a function counts in its own variable.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import cached_property
from typing import NamedTuple

MOST_READ = 1 << 20  # bytes of a file
# limits for the files of a project: number, characters, folders below its own
MOST_FILES, MOST_CHARACTERS, DEEPEST = 200, 2 << 20, 2
ENDINGS = (".py", ".sh", ".bash", ".toml", ".txt", ".cfg", ".yaml", ".yml", ".ipynb")

LIBRARY = "gpq_agent"
IMPORTS_TORCH = re.compile(rf"^(?:import|from)\s+(?:torch|{LIBRARY})\b", re.MULTILINE)
# Attributes of a job that survive a restart.
ASKS = {"step", "progress", "should_stop", "done", "epoch", "samples"}
NUMBERS = ("float", "int", "list", "dict", "set", "deque")  # these make a plain value
LIBRARIES = ("torch", "nn", "optim", "np", "numpy")
# Calls that copy weights.
COPIERS = re.compile(r"deepcopy|clone|AveragedModel|\w*(EMA|Ema(?![a-z])|MovingAverage)\w*")
UPDATES = ("update", "update_parameters")  # methods of averages, besides those that end with "_"
# A class of a framework, by its package and the end of its name, and how gpq's adapter gets it.
ADAPTERS = {
    ("transformers", "Trainer"): "gpq.elastic({0})(...)",
    ("trl", "Trainer"): "gpq.elastic({0})(...)",
    ("accelerate", "Accelerator"): "gpq.accelerate({0}(...))",
    ("lightning", "Trainer"): "{0}(**gpq.lightning(), ...)",
    ("pytorch_lightning", "Trainer"): "{0}(**gpq.lightning(), ...)",
}
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
Loop = ast.For | ast.AsyncFor

MOST_HINTS = 5
END = "`{name}`, by which the loop may end"
KEEP = (
    "add {name} = job.state({short!r}, {name}) before the loop, and job.state({short!r}, {name})"
    " where it changes"
)
RESETS = {  # kind of a Reset -> what a restart resets, and the cure
    "value": (END, KEEP),
    "number": (END, "use the epoch that job.epochs() yields"),
    "object": (END, "add {name} = job.state({name}) before the loop"),
    "best": ("`{name}`, the best value so far", KEEP),
    "average": (
        "`{name}`, an average of weights",
        "make it a module (AveragedModel), call job.state() with it before the loop, and update it"
        " only if job.at_step",
    ),
    "scale": ("the scale of `{name}`", "call job.prepare(model, optimizer, scaler={name})"),
}


def text_of(path: str) -> str:
    """The beginning of a file. "" if it is no text or cannot be read."""
    try:
        if not os.path.isfile(path):
            return ""
        with open(path, "rb") as stream:
            head = stream.read(MOST_READ)
    except (OSError, ValueError):  # the latter: a NUL in the path
        return ""
    return "" if b"\0" in head[:4096] else head.decode("utf-8", "replace")


def project_texts(folders: Iterable[str]) -> Iterator[str]:
    """Texts of the files in these folders, but of no home directory, root or folder of programs."""
    excluded = {os.path.expanduser("~"), "/", *os.environ.get("PATH", "").split(os.pathsep)}
    count = size = 0
    for folder in dict.fromkeys(folders):
        if excluded & {folder, os.path.realpath(folder)}:
            continue
        for text in map(text_of, _paths(folder)):
            count, size = count + 1, size + len(text)
            if count > MOST_FILES or size > MOST_CHARACTERS:
                return
            yield text


def _paths(folder: str) -> Iterator[str]:
    """Files of source in a folder and below, but in no virtual environment and no cache."""
    depth = folder.rstrip(os.sep).count(os.sep)
    for path, below, names in os.walk(folder):
        is_environment = "pyvenv.cfg" in names
        if is_environment or path.count(os.sep) - depth >= DEEPEST:
            below.clear()
        below[:] = sorted(name for name in below if not name.startswith((".", "__", "node_mod")))
        if not is_environment:
            yield from (
                os.path.join(path, name) for name in sorted(names) if name.endswith(ENDINGS)
            )


def names_read(text: str, names: Collection[str]) -> set[str]:
    """Those of the variables that stand in quotes or after a `$`."""
    pattern = rf"(?:[\"']|\$\{{?)({'|'.join(map(re.escape, names))})\b"
    return set(re.findall(pattern, text)) if names else set()


def names_set(text: str, names: Iterable[str]) -> set[str]:
    """Those of the variables to which the code assigns a value."""
    pattern = r"(?m)(?:^|[\s;]){0}=|[\"']{0}[\"']\]\s*=(?!=)"
    return {name for name in names if re.search(pattern.format(re.escape(name)), text)}


class Reset(NamedTuple):
    """What a restart of the job resets.

    kind: a "value" or an "object" by which the loop may end, the "number" of an epoch by which it
    may end, the "best" value so far, an "average" of weights, or the "scale" of a GradScaler.
    """

    kind: str
    name: str
    line: int


class Assignment(NamedTuple):
    name: str
    value: ast.expr
    line: int


class Script:
    """A Python file. It is parsed once, when something is asked that needs it, and shows nothing if
    it cannot be parsed."""

    def __init__(self, text: str) -> None:
        self.text = text

    def imports_torch(self) -> bool:
        return bool(IMPORTS_TORCH.search(self.text))

    def uses_library(self) -> bool:
        return LIBRARY in self.text

    def adapter_calls(self) -> list[tuple[int, str, str]]:
        """Calls of a framework for which gpq has an adapter: (line, name of what it calls, the call
        with the adapter)."""
        if not any(package in self.text for package, _ in ADAPTERS):  # saves the time to parse
            return []
        origins: dict[str, str] = {}
        bases: dict[str, str] = {}
        for node in self._nodes:
            match node:
                case ast.Import(names=names):
                    packages = [item.name.split(".")[0] for item in names]
                    origins |= {
                        item.asname or package: package
                        for item, package in zip(names, packages, strict=True)
                    }
                case ast.ImportFrom(module=str(module), names=names):
                    package = module.split(".")[0]
                    origins |= {
                        item.asname or item.name: f"{package}.{item.name}" for item in names
                    }
                case ast.ClassDef(name=name, bases=[base, *_]):
                    bases[name] = _name(base)
        calls = []
        for node in self._nodes:
            if isinstance(node, ast.Call):
                name = _name(node.func)
                first, _, rest = bases.get(name, name).partition(".")
                origin = f"{origins.get(first, '')}.{rest}".rstrip(".")
                calls += [
                    (node.lineno, name, text.format(name))
                    for (package, end), text in ADAPTERS.items()
                    if origin.startswith(f"{package}.") and origin.endswith(end)
                ]
        return calls

    def token_loss(self) -> int | None:
        """The first line of a loss that is no mean over examples: it skips labels or divides a
        sum."""
        lines = [node.lineno for node in self._nodes if _is_token_loss(node)]  # type: ignore[attr-defined]
        return min(lines, default=None)

    def resets(self) -> list[Reset]:
        """What the loops over job.epochs() use, each name once."""
        if ".epochs(" not in self.text:  # saves the time to parse
            return []
        resets_by_name: dict[str, Reset] = {}
        for node in self._nodes:
            if isinstance(node, Loop) and "epochs" in map(_method, ast.walk(node.iter)):
                for reset in self._resets(node):
                    resets_by_name.setdefault(reset.name, reset)
        return list(resets_by_name.values())

    def _resets(self, loop: Loop) -> Iterator[Reset]:
        nodes = list(_inside(loop.body))
        changes = _all(_changes, nodes) | self._changes_by_methods
        carried = changes & self._before(loop, _is_plain).keys()
        objects = self._before(loop, _is_instance)
        numbers: set[str] = set()  # the name that enumerate() numbers epochs with
        if _owner(loop.iter) == "enumerate" and isinstance(loop.target, ast.Tuple):
            numbers = _names(next(ast.iter_child_nodes(loop.target)))
        formulas = [pair for node in nodes for pair in _assignments(node)]
        exit_names: set[str] = set()
        for line, tests in _exits(nodes):
            names = _names(*tests)  # and those from which the loop computes them
            terms = [_names(value) for target, value in formulas if _name(target) in names]
            names = names.union(*terms)
            if any("." in name and name.split(".")[-1] in ASKS for name in names):
                continue
            exit_names |= names
            used = {_owner(part) for test in tests for part in ast.walk(test)}
            matches = {
                "value": names & carried,
                "number": names & numbers,
                "object": used & objects.keys(),
            }
            for kind, affected in matches.items():
                yield from (Reset(kind, name, line) for name in sorted(affected))
        for node in nodes:
            if isinstance(node, ast.If):
                best = _names(node.test) & _all(_changes, _inside(node.body)) & carried
                yield from (Reset("best", name, node.lineno) for name in sorted(best - exit_names))
        updates = _all(_updates, nodes)
        copies, scalers = self._before(loop, _is_copy), self._before(loop, _is_scaler)
        yield from (
            Reset("average", name, copies[name]) for name in sorted(updates & copies.keys())
        )
        yield from (Reset("scale", name, scalers[name]) for name in sorted(scalers))

    def _before(self, loop: Loop, is_kind: Callable[[ast.expr], bool]) -> dict[str, int]:
        """The first line by name of what is assigned before a loop, and that the job is not
        given."""
        return {
            assignment.name: assignment.line
            for assignment in reversed(self._assignments)
            if assignment.line < loop.lineno
            and assignment.name not in self._given_names
            and is_kind(assignment.value)
        }

    @cached_property
    def _nodes(self) -> list[ast.AST]:
        try:
            return list(ast.walk(ast.parse(self.text)))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return []

    @cached_property
    def _assignments(self) -> list[Assignment]:
        """By line."""
        assignments = [
            Assignment(_name(target), value, target.lineno)
            for node in self._nodes
            for target, value in _assignments(node)
        ]
        return sorted(assignments, key=lambda assignment: assignment.line)

    @cached_property
    def _given_names(self) -> set[str]:
        """Names that job.state() or job.prepare() has got or returned."""
        calls = [node for node in self._nodes if _method(node) in ("state", "prepare")]
        returned = {item.name for item in self._assignments if _method(item.value) == "state"}
        return {"", *returned, *_names(*calls)}

    @cached_property
    def _changes_by_methods(self) -> set[str]:
        """Attributes of its own object that a method changes."""
        methods = [node for node in self._nodes if isinstance(node, ast.FunctionDef)]
        parts = [part for item in methods if item.name != "__init__" for part in ast.walk(item)]
        return {name for name in _all(_changes, parts) if name.startswith("self.")}


def hints(script: Script) -> list[str]:
    """What a restart resets, one line each, at most MOST_HINTS. They take no freedom."""
    lines = []
    for kind, name, line in script.resets()[:MOST_HINTS]:
        what, cure = (part.format(name=name, short=name.split(".")[-1]) for part in RESETS[kind])
        lines.append(f"line {line}: a restart of the job resets {what}: {cure}")
    return lines


def _is_token_loss(node: ast.AST) -> bool:
    match node:
        case (
            ast.keyword(arg="ignore_index")
            | ast.keyword(arg="reduction", value=ast.Constant(value="sum"))
            | ast.BinOp(op=ast.Div(), left=ast.Call(func=ast.Attribute(attr="sum"), args=[]))
        ):
            return True
    return False


def _exits(nodes: list[ast.AST]) -> Iterator[tuple[int, list[ast.expr]]]:
    """(line, the tests that lead there) for each exit from a loop, by line.

    A break counts in inner loops too, because they run within one epoch.
    """
    tests_by_line: dict[int, list[ast.expr]] = {}
    for node in nodes:
        if isinstance(node, ast.If):
            for part in _inside([*node.body, *node.orelse]):
                if isinstance(part, ast.Break | ast.Return):
                    tests_by_line.setdefault(part.lineno, []).append(node.test)
    yield from sorted(tests_by_line.items())


def _owner(node: ast.AST) -> str:
    """`a` for `a()` and `a.b`, "" for anything else."""
    match node:
        case ast.Call(func=part) | ast.Attribute(value=part):
            return _name(part)
    return ""


def _updates(node: ast.AST) -> set[str]:
    """Names whose tensors this node changes in place."""
    match node:
        case ast.For():
            is_changed = _all(_updates, _inside(node.body)) & _names(node.target)
            return _names(node.iter) if is_changed else set()
        case ast.Assign():
            return {_name(part.value) for part in node.targets if isinstance(part, ast.Subscript)}
        case ast.AugAssign(target=ast.Subscript(value=owner)):
            return {_name(owner)}
        case ast.Call(func=ast.Attribute(attr=name)) if name in UPDATES or name.endswith("_"):
            return _names(node.func, *(node.args[:1] if name.startswith("_") else []))
    return set()


def _changes(node: ast.AST) -> set[str]:
    """Names that a node assigns, or of which it calls a method."""
    names = {_name(target) for target, _ in _assignments(node)}
    match node:
        case ast.AugAssign(target=part) | ast.Call(func=ast.Attribute(value=part)):
            names.add(_name(part))
    return names


def _assignments(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """(target, value)."""
    match node:
        case ast.Assign():
            for target in node.targets:
                match target, node.value:
                    case ast.Tuple(elts=targets), ast.Tuple(elts=values):
                        yield from zip(targets, values, strict=False)
                    case pair:
                        yield pair
        case ast.AnnAssign(target=target, value=ast.expr() as value):
            yield target, value


def _inside(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """All nodes except those in functions and classes defined there."""
    stack = [*body][::-1]
    while stack:
        node = stack.pop()
        if not isinstance(node, SCOPES):
            yield node
            stack += [*ast.iter_child_nodes(node)][::-1]


def _is_plain(value: ast.expr) -> bool:
    match value:
        case ast.UnaryOp():
            return _is_plain(value.operand)
        case ast.Call():
            return _name(value.func).split(".")[-1] in NUMBERS
        case ast.Constant() | ast.List() | ast.Dict() | ast.Set():
            return True
    return _name(value).endswith(".inf")


def _is_instance(value: ast.expr) -> bool:
    """Is it a call of a class by its capital letter, and not one of torch's?"""
    parts = _name(value.func).split(".") if isinstance(value, ast.Call) else [""]
    return parts[-1][:1].isupper() and parts[0] not in LIBRARIES


def _is_copy(value: ast.expr) -> bool:
    return any(map(COPIERS.fullmatch, _called_names(value)))


def _is_scaler(value: ast.expr) -> bool:
    return "GradScaler" in _called_names(value)


def _called_names(value: ast.expr) -> list[str]:
    """The last names of everything that an expression calls."""
    names = []
    for node in ast.walk(value):
        match node:
            case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)):
                names.append(name)
    return names


def _method(node: ast.AST) -> str:
    """`b` for a call of a.b(), "" for anything else."""
    match node:
        case ast.Call(func=ast.Attribute(attr=name)):
            return name
    return ""


def _name(node: ast.AST) -> str:
    """`a` or `self.a`, "" for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        base = _name(node.value)
        return f"{base}.{node.attr}" if base else ""
    return ""


def _names(*nodes: ast.AST) -> set[str]:
    """All names that they read, including the owners of attributes."""
    return {name for node in nodes for part in ast.walk(node) if (name := _name(part))}


def _all(names_of: Callable[[ast.AST], set[str]], nodes: Iterable[ast.AST]) -> set[str]:
    return {name for node in nodes for name in names_of(node)}
