"""Makes the JSON Schemas (2020-12) of what `--json` prints from the types that are printed. `make completions` writes
them to gpq/schemas, which the package contains and `gpq schema` prints."""

from __future__ import annotations

import ast
import inspect
import io
import json
import textwrap
import tokenize
from collections.abc import Collection
from itertools import chain
from typing import Any

import msgspec

from gpq import config
from gpq.cli.lab.schema import name_of
from gpq.options.json_answers import Error
from tests.generated.printed import PRINTED, STREAMS

DIALECT = "https://json-schema.org/draft/2020-12/schema"
RULE = (
    "gpq may add fields at any time, so ignore fields that you do not know. `schema` increases when"
    " a field is removed or changes its meaning. Times are UTC in ISO 8601. Durations are seconds."
)


def schema(path: str) -> dict[str, Any]:
    """The schema of the output of a command, or of one line of it."""
    kinds = (*PRINTED[path], Error)
    _, components = msgspec.json.schema_components(kinds, schema_hook=_anything, ref_template="#/$defs/{name}")
    classes = _classes()
    for name, component in components.items():
        # Every field is required, more fields may come, and comments become descriptions.
        properties = component.get("properties", {})
        descriptions = comments(classes[name]) if name in classes else {}
        for field, field_schema in properties.items():
            field_schema.pop("default", None)
            if field in descriptions:
                field_schema["description"] = descriptions[field]
        if properties:
            component["required"] = list(properties)
        if component.get("additionalProperties") is False:
            del component["additionalProperties"]
        if "description" in component:
            component["description"] = " ".join(component["description"].split())
    subject = "each line that" if path in STREAMS else "what"
    return {
        "$schema": DIALECT,
        "title": f"gpq {path} --json",
        "description": f"This is {subject} `gpq {path} --json` prints. {RULE}",
        "anyOf": [{"$ref": f"#/$defs/{kind.__name__}"} for kind in kinds],
        "$defs": components,
    }


def _anything(kind: type) -> dict[str, Any]:
    """The schema of `object`, which msgspec does not know."""
    if kind is not object:
        raise TypeError(f"no JSON Schema is known for {kind!r}: say what it is printed as")
    return {"description": "any value"}


def files() -> dict[str, str]:
    """Path in the repository -> contents, of all schemas."""
    return {f"gpq/schemas/{name_of(path)}.json": json.dumps(schema(path), indent=1) + "\n" for path in PRINTED}


def _classes() -> dict[str, type]:
    """Every class that can be part of an answer, by name. Raises TypeError if two have the same
    name, because a schema would describe the wrong one."""
    modules = set(map(inspect.getmodule, chain(*PRINTED.values(), [config.FileConfig])))
    classes: dict[str, type] = {}
    for module in modules:
        for _, kind in inspect.getmembers(module, inspect.isclass):
            if classes.setdefault(kind.__name__, kind) is not kind:
                name, first = kind.__name__, classes[kind.__name__].__module__
                raise TypeError(f"two classes are called {name}: {first}, {kind.__module__}")
    return classes


def comments(kind: type) -> dict[str, str]:
    """Field -> the comment after it in the source, or else the comment above it. Fields of base
    classes are included."""
    texts: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        try:
            source = textwrap.dedent(inspect.getsource(base))
        except (OSError, TypeError):  # built-in or compiled
            continue
        texts |= _field_comments(source)
    return texts


def _field_comments(source: str) -> dict[str, str]:
    """The comments of one class, by field."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    texts = {token.start[0]: token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT}
    alone = {row for row, line in enumerate(source.splitlines(), 1) if line.lstrip()[:1] == "#"}
    comments: dict[str, str] = {}
    for statement in ast.iter_child_nodes(ast.parse(source).body[0]):
        match statement:
            case ast.AnnAssign(target=ast.Name(id=name)):
                rows = _comment_rows(statement, texts.keys(), alone)
                if rows:
                    comments[name] = " ".join(texts[row] for row in rows)
    return comments


def _comment_rows(statement: ast.stmt, rows: Collection[int], alone: Collection[int]) -> list[int]:
    """Rows of the comments after it, or else of the comments above it (`alone` in their rows)."""
    last = statement.end_lineno or 0
    behind = [row for row in range(statement.lineno, last + 1) if row in rows]
    if behind:
        return behind
    above = statement.lineno - 1
    while above in alone:
        above -= 1
    return list(range(above + 1, statement.lineno))
