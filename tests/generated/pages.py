"""Pages of docs/ from the program: the whole of `docs/commands.md`, from the same help as the
manual pages, and tables of other pages, such as the keys of config.toml.

Each table is between two markers. `reference.py` writes them, and a test keeps them fresh.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields
from typing import Any

from gpq.config import FileConfig, NodeConfig, TeamConfig
from gpq.policies.registry import POLICIES
from gpq.rpc.job_columns import COLUMNS, FIELDS, shown_on
from tests.generated.schemas import comments

HEAD = """\
# Commands

<!-- Made from the commands by make completions: edit their help instead. -->

Every command has `--help`, a man page (`man gpq-submit`) and [completion](install.md). For `gpq
submit`, options of gpq come before the script or before `--`. Everything after that belongs to your
job. For all other commands, options may come anywhere.
"""
MARKER = "<!-- {}: make completions -->"
END = "<!-- /{} -->"
# kind: what a query compares, for docs/many-jobs.md
KINDS = {
    "text": "text, without regard to case",
    "whole": "whole numbers",
    "count": "whole numbers",  # 0 is shown as -
    "size": "whole numbers",  # 0 means that it is not known
    "number": "numbers, as in `gpq status` and `gpq top`",
    "ratio": "numbers, as in `gpq status` and `gpq top`",
    "share": "numbers from 0 to 1, or percentages",
    "span": "times, as in `gpq status`",
    "moment": "moments, only to sort by",
}
# column -> what it means, for docs/jobs.md, or without a title for docs/many-jobs.md
MEANINGS = {
    "id": (
        "The number of the job. Four or more jobs of an array that wait for the same thing share one row, such as"
        " `7-104`"
    ),
    "name": (
        "Its name. For a job of an array also the index or the values of the sweep: `train[3]`, `train[lr=0.1]`."
        " A shared row has all indices: `train[0-3]`"
    ),
    "user": (
        "The account that submitted it. On a narrow terminal gpq leaves this column out if all jobs belong to one user"
    ),
    "state": "One of the states below",
    "server": (
        "The GPUs it holds: server and numbers, such as `gpu1:0-2,5 gpu2:1`. On a server without GPUs these are"
        " CPU slots"
    ),
    "batch": "The batch size that it trains with now, over all its GPUs",
    "goodput": (
        "Examples per second that are as useful as at the base batch size: throughput times statistical"
        " efficiency. It needs the training library. It uses the latest measured throughput, so it differs from"
        " the curve in `gpq why`, which comes from the job's model"
    ),
    "speedup": (
        "Its goodput now, divided by its goodput on its [fair share](teams.md#fair-share-speedup-and-rho) of the"
        " GPUs. `1x` is as fast as on the fair share. Both come from the model of the job, so GOODPUT alone does"
        " not tell it. `-` until gpq has measured the job on its fair share"
    ),
    "progress": (
        "How much of its work it has done, if the script says how much there is: `job.epochs(N)` or"
        " `job.steps(N)`. Queries and `--json` call it `progress`"
    ),
    "eta": (
        "The time it still needs, at its present GOODPUT. With a fixed batch size or `job.epochs(N,"
        " passes=True)`, at its present throughput"
    ),
    "run": "How long it has run, in all attempts",
    "age": "The time since its submission. For an ended job, the time from its submission to its end",
    "reason": (
        "Why it waits, what is wrong with it, or how it ended. A shared row begins with the number of jobs: `4"
        " jobs: after job 3` are four jobs that wait until job 3 succeeds"
    ),
    "kind": "text: `black-box`, `signal`, `script`, `resizable` or `adaptive`",
    "rho": "the [finish-time fairness](teams.md#fair-share-speedup-and-rho)",
    "exit": "the exit code",
}
TYPES = {
    "float": "number",
    "int": "whole number",
    "bool": "true or false",
    "str": "text",
    "list[int]": "list of whole numbers",
    "list[str]": "list of texts",
    "TeamConfig": "table",
    "dict[str, NodeConfig]": "table of tables",
    "dict[str, object]": "table",
    "dict[str, list[str]]": "table of lists",
    "dict[str, float]": "table of numbers",
}


def page(commands: list[tuple[str, Any]]) -> str:
    """The whole page, of (path, typer command) such as `daemon start`."""
    parts = [HEAD, table(commands)]
    parts += ["\n".join(_section(path, command)) for path, command in commands]
    return "\n".join(parts)


def table(commands: list[tuple[str, Any]]) -> str:
    """The commands in Markdown: usage and first line of the help."""
    rows = ["| command | what it does |", "|---|---|"]
    for path, command in commands:
        paragraph = (command.help or "").strip().partition("\n\n")[0]
        line = " ".join(paragraph.split()).rstrip(".").replace("|", "\\|")
        rows.append(f"| [`gpq {path}`](#gpq-{path.replace(' ', '-')}) | {line} |")
    return "\n".join(rows) + "\n"


def _section(path: str, command: Any) -> Iterator[str]:
    text, _, examples = (command.help or "").partition("\b")
    yield f"## gpq {path}\n"
    yield f"```text\ngpq {path} {usage(command)}\n```\n"
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        yield " ".join(paragraph.split()) + "\n"
    yield "| option | meaning |\n|---|---|"
    for option in parameters(command, "option"):
        metavar = "" if option.is_flag else f" {option.metavar or option.type.name.upper()}"
        names = ", ".join(f"`{name}`" for name in sorted(option.opts, key=len))
        meaning = " ".join((option.help or "").split())
        yield f"| {names}{_escape(metavar)} | {_escape(meaning)} |"
    lines = map(str.strip, examples.splitlines())
    prompts = "\n".join(f"$ {line}" for line in lines if line not in ("", "Example:"))
    yield f"\n```console\n{prompts}\n```\n"


def parameters(command: Any, kind: str) -> list[Any]:
    """The parameters of a typer command that are of a kind: "argument" or "option"."""
    return [part for part in command.params if part.param_type_name == kind]


def usage(command: Any) -> str:
    """The arguments as the first line of the help has them: `[OPTIONS] SCRIPT [ARGS]...`."""
    arguments = [str(part.metavar or part.name) for part in parameters(command, "argument")]
    return " ".join(["[OPTIONS]", *arguments])


def _escape(text: str) -> str:
    """What would end a cell is escaped, and outside code what would begin emphasis or HTML."""
    pieces = text.split("`")
    pieces[::2] = [re.sub(r"([*<{_])", r"\\\1", piece) for piece in pieces[::2]]
    return "`".join(pieces).replace("|", "\\|")


def keys(kind: type) -> str:
    """The keys of one class of gpq/config.py, with the comments of its fields as their meaning."""
    meanings = comments(kind)
    rows = ["| key | type | default | meaning |", "|---|---|---|---|"]
    for key in fields(kind):
        kind_of_value = TYPES[str(key.type).removesuffix(" | None")]
        meaning = meanings[key.name].rstrip(".").replace("|", "\\|")
        rows.append(f"| `{key.name}` | {kind_of_value} | {_default(key)} | {meaning} |")
    return "\n".join(rows) + "\n"


def _default(each: Any) -> str:
    value = each.default if each.default is not MISSING else each.default_factory()
    match value:
        case dict() if value:
            return ", ".join(f"`[nodes.{name}]`" for name in value)
        case None | "" | list() | dict() | TeamConfig():
            return "-"
        case bool():
            return f"`{str(value).lower()}`"
        case str():
            return f'`"{value}"`'
        case _:
            return f"`{value:g}`"


def policies() -> str:
    rows = ["| policy | in one sentence | kind |", "|---|---|---|"]
    rows += [
        f"| `{name}` | {each.sentence} | {'gang' if each.gang else 'elastic'} |" for name, each in POLICIES.items()
    ]
    return "\n".join(rows) + "\n"


def columns() -> str:
    """What `gpq status` shows of a job."""
    rows = [f"| {head.title} | {MEANINGS[head.name]} |" for head in shown_on("status")]
    return "\n".join(["| column | meaning |", "|---|---|", *rows, ""])


def queries() -> str:
    """What a query compares, one line for the fields that are compared alike."""
    names_by_meaning: dict[str, list[str]] = {}
    for name in FIELDS:
        column = COLUMNS[name]
        meaning = KINDS[column.kind] if column.title else MEANINGS.get(name, KINDS[column.kind])
        names_by_meaning.setdefault(meaning, []).append(f"`{name}`")
    rows = [f"| {', '.join(names)} | {meaning} |" for meaning, names in names_by_meaning.items()]
    return "\n".join(["| fields | compare |", "|---|---|", *rows, ""])


# Page -> its tables, by the name in their markers.
TABLES: dict[str, dict[str, Callable[[], str]]] = {
    "docs/configuration.md": {
        "keys": lambda: keys(FileConfig),
        "keys-of-teams": lambda: keys(TeamConfig),
        "keys-of-servers": lambda: keys(NodeConfig),
    },
    "docs/jobs.md": {"columns": columns},
    "docs/many-jobs.md": {"fields": queries},
    "docs/policies.md": {"policies": policies},
}


def tables() -> dict[str, str]:
    """Path in the repository -> text of the page with its tables. Reads the pages."""
    texts = {}
    for path, makers in TABLES.items():
        with open(path, encoding="utf-8") as stream:
            text = stream.read()
        for name, maker in makers.items():
            begin, end = MARKER.format(name), END.format(name)
            head, _, rest = text.partition(begin)
            _, end_marker, tail = rest.partition(end)
            if not end_marker:
                raise ValueError(f"no {begin} ... {end} in the page")
            text = f"{head}{begin}\n{maker()}{end}{tail}"
        texts[path] = text
    return texts
