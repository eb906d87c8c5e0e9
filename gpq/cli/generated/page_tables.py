"""Tables in the pages of docs/ that come from the program: the keys of config.toml, the policies,
the columns of a job.

Each is between two markers. `reference.py` writes them, and a test keeps them fresh.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any

from gpq.cli.generated.schemas import comments
from gpq.config import FileConfig, NodeConfig
from gpq.policies.registry import POLICIES
from gpq.rpc.job_columns import COLUMNS, FIELDS, KINDS, shown_on

MARKER = "<!-- {}: python -m gpq.cli.generated.reference --write -->"
END = "<!-- /{} -->"
TYPES = {
    "float": "number",
    "int": "whole number",
    "bool": "true or false",
    "str": "text",
    "list[int]": "list of whole numbers",
    "list[str]": "list of texts",
    "dict[str, NodeConfig]": "table of tables",
    "dict[str, object]": "table",
    "dict[str, list[str]]": "table of lists",
}


def keys(kind: type) -> str:
    """The keys of one class of gpq/config.py, with the comments of its fields as their meaning."""
    meanings = comments(kind)
    rows = ["| key | type | default | meaning |", "|---|---|---|---|"]
    rows += [
        f"| `{each.name}` | {_type(each.type)} | {_default(each)} | {_cell(meanings[each.name])} |"
        for each in fields(kind)
    ]
    return "\n".join(rows) + "\n"


def _type(annotation: object) -> str:
    return TYPES[str(annotation).removesuffix(" | None")]


def _default(each: Any) -> str:
    value = each.default if each.default is not MISSING else each.default_factory()
    match value:
        case dict() if value:
            return ", ".join(f"`[nodes.{name}]`" for name in value)
        case None | "" | list() | dict():
            return "-"
        case bool():
            return f"`{str(value).lower()}`"
        case str():
            return f'`"{value}"`'
        case _:
            return f"`{value:g}`"


def _cell(text: str) -> str:
    return text.rstrip(".").replace("|", "\\|")


def policies() -> str:
    rows = ["| policy | in one sentence | kind |", "|---|---|---|"]
    rows += [
        f"| `{name}` | {each.sentence} | {'gang' if each.gang else 'elastic'} |"
        for name, each in POLICIES.items()
    ]
    return "\n".join(rows) + "\n"


def columns() -> str:
    """What `gpq status` shows of a job."""
    rows = [f"| {head.title} | {head.meaning} |" for head in shown_on("status")]
    return "\n".join(["| column | meaning |", "|---|---|", *rows, ""])


def queries() -> str:
    """What a query compares, one line for the fields that are compared alike."""
    names_by_meaning: dict[str, list[str]] = {}
    for name in FIELDS:
        column = COLUMNS[name]
        meaning = KINDS[column.kind] if column.title else column.meaning or KINDS[column.kind]
        names_by_meaning.setdefault(meaning, []).append(f"`{name}`")
    rows = [f"| {', '.join(names)} | {meaning} |" for meaning, names in names_by_meaning.items()]
    return "\n".join(["| fields | compare |", "|---|---|", *rows, ""])


# Page -> its tables, by the name in their markers.
TABLES: dict[str, dict[str, Callable[[], str]]] = {
    "docs/configuration.md": {
        "keys": lambda: keys(FileConfig),
        "keys-of-servers": lambda: keys(NodeConfig),
    },
    "docs/jobs.md": {"columns": columns},
    "docs/many-jobs.md": {"fields": queries},
    "docs/policies.md": {"policies": policies},
}


def pages() -> dict[str, str]:
    """Path in the repository -> text of the page with its tables. Reads the pages."""
    texts = {}
    for path, tables in TABLES.items():
        with open(path, encoding="utf-8") as stream:
            text = stream.read()
        for name, table in tables.items():
            text = _with_table(text, name, table())
        texts[path] = text
    return texts


def _with_table(text: str, name: str, table: str) -> str:
    """Raises ValueError if the page has no such markers."""
    begin, end = MARKER.format(name), END.format(name)
    head, _, rest = text.partition(begin)
    _, end_marker, tail = rest.partition(end)
    if not end_marker:
        raise ValueError(f"no {begin} ... {end} in the page")
    return f"{head}{begin}\n{table}{end}{tail}"
