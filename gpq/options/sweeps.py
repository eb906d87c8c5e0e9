"""`--array 0-99%4`, `--sweep lr=1e-3,1e-2` and `--sweep-file CSV` -> the elements of an array.
Raises UsageError."""

from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Iterable, Sequence

from gpq.errors import UsageError
from gpq.options import sweep_values
from gpq.options.sweep_values import MOST
from gpq.rpc import placeholders
from gpq.rpc.requests import ArrayMessage, SpecMessage

EXAMPLE = "for example --array 0-99, --array 0-99%4 (4 at once) or --array 1,3,8-20:4"
SWEEP_EXAMPLE = "for example --sweep lr=1e-3,1e-2 or --sweep seed=0..9"
PARAM = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}")
Params = dict[str, str]


def array_of(array: str, sweeps: list[str], file: str) -> ArrayMessage | None:
    """None if none of the three options was given. `--array %4` together with a sweep is only its
    limit."""
    if not array and not sweeps and not file:
        return None
    text, percent, at_once = array.partition("%")
    limit = _limit(array, at_once) if percent else 0
    if not sweeps and not file:
        return ArrayMessage(indices(text, array), limit=limit)
    if text:
        raise UsageError(
            f"--array {text} cannot be combined with --sweep",
            "the sweep already defines the jobs. `--array %4` limits how many run at once",
        )
    points = _combine([_from_file(file)] if file else [], [_grid(sweep) for sweep in sweeps])
    return ArrayMessage(list(range(len(points))), points, limit)


def unused_lines(array: ArrayMessage, spec: SpecMessage) -> list[str]:
    """A line about each `${NAME}` that is left to the shell although `{NAME}` may have been meant.
    Also one if something swept is in no argument, because the job then has it only in its
    environment."""
    texts = [*spec.argv, *spec.resume_argv, spec.done_file, *spec.env.values()]
    written = {name for text in texts for name in placeholders.names(text)}
    swept = list((array.params or [{}])[0])
    variables = {"index": "GPQ_ARRAY_INDEX", **{name: f"GPQ_SWEEP_{name}" for name in swept}}
    # no shell reads the done file
    shells = [
        name
        for name in variables
        if _is_the_shells(name, [spec.done_file])
        or (name not in written and _is_the_shells(name, texts))
    ]
    notes = [
        f"gpq leaves ${{{name}}} to the shell and fills in only {{{name}}}:"
        f" the job also gets it as the variable {variables[name]}"
        for name in shells
    ]
    names = [name for name in swept if name not in written and name not in shells]
    if names:
        placeholder_list = ", ".join(f"{{{name}}}" for name in names)
        notes.append(
            f"no argument contains {placeholder_list}: the job gets it only as the variable"
            f" GPQ_SWEEP_{names[0]}"
        )
    return notes


def _is_the_shells(name: str, texts: Sequence[str]) -> bool:
    return any(f"${{{name}}}" in text for text in texts)


def plain_indices(text: str, spec: SpecMessage) -> list[str]:
    """A line if the substituted values lose leading zeros of an index."""
    texts = [*spec.argv, *spec.resume_argv, spec.done_file, *spec.env.values()]
    zeros = re.search(r"(?<!\d)0\d+", text.partition("%")[0])
    if not zeros or not any("index" in placeholders.names(word) for word in texts):
        return []
    return [
        f"--array {text}: an index is a number, so {{index}} has no leading zeros."
        " --sweep i=001..010 keeps them"
    ]


def _limit(array: str, text: str) -> int:
    if not re.fullmatch(r"\d{1,5}", text) or not 1 <= int(text) <= MOST:
        raise UsageError(f"invalid --array {array!r}: expected a number of jobs after %", EXAMPLE)
    return int(text)


def indices(text: str, array: str) -> list[int]:
    """`0-99`, `1,3,8-20:4`: each once, ascending. Raises UsageError, which names `array`."""
    numbers: set[int] = set()
    for part in text.split(","):
        bounds = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9})(?::([1-9]\d{0,8}))?)?", part.strip())
        if not bounds:
            raise UsageError(f"invalid --array {array!r}: expected indices", EXAMPLE)
        low, high = int(bounds[1]), int(bounds[2] or bounds[1])
        if high < low:
            raise UsageError(
                f"invalid --array {array!r}: range end is below its start",
                f"did you mean {high}-{low}?",
            )
        span = range(low, high + 1, int(bounds[3] or 1))
        if len(span) + len(numbers) > MOST:
            raise UsageError(f"--array {array} has more than {MOST} jobs", "submit it in parts")
        numbers.update(span)
    return sorted(numbers)


def _name(text: str, where: str) -> str:
    if not PARAM.fullmatch(text) or text == "index":
        raise UsageError(
            f"{where}: invalid name {text[:80]!r}",
            "use letters, digits and _, and not the name index",
        )
    return text


def _grid(text: str) -> list[Params]:
    """`lr=1e-3,1e-2` and `seed=0..9`."""
    option = f"--sweep {text[:80]}"
    name, equals, values = text.partition("=")
    if not equals or not values.strip():
        raise UsageError(f"{option} has no values", SWEEP_EXAMPLE)
    name = _name(name.strip(), option)
    points = sweep_values.read(values, option)
    if len(set(points)) < len(points):
        raise UsageError(f"{option} has a value twice", "to repeat a job, sweep its seed")
    return [{name: value} for value in points]


def _from_file(path: str) -> list[Params]:
    """A job for each line below the head, which names the columns."""
    try:
        with open(path, encoding="utf-8-sig", newline="") as stream:
            reader = csv.reader(stream, strict=True, skipinitialspace=True)
            lines = [(reader.line_num, row) for row in reader if row]
    except OSError as error:
        raise UsageError(f"--sweep-file {path}: {error.strerror}", "give a CSV file") from None
    except (csv.Error, UnicodeDecodeError) as error:
        raise UsageError(
            f"--sweep-file {path} is not a CSV file: {error}", "save it as CSV in UTF-8"
        ) from None
    if len(lines) < 2:
        raise UsageError(
            f"--sweep-file {path} has no jobs",
            "write the names in the first line, then one job per line",
        )
    names = [_name(column.strip(), f"--sweep-file {path}") for column in lines[0][1]]
    if len(set(names)) < len(names):
        raise UsageError(f"--sweep-file {path} has two columns of the same name", "rename one")
    for number, row in lines[1:]:
        if len(row) != len(names):
            raise UsageError(
                f"--sweep-file {path}, line {number}: {len(row)} values for {len(names)} names",
                "give one value per name, and put a value with a comma in double quotes",
            )
    return [dict(zip(names, map(str.strip, row), strict=True)) for _, row in lines[1:]]


def _combine(files: list[list[Params]], grids: list[list[Params]]) -> list[Params]:
    """Every line with every point of the grid. The last option varies fastest."""
    parts = [*files, *grids]
    names = [name for part in parts for name in part[0]]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"{twice} is swept twice", "put all its values into one option")
    count = 1
    for part in parts:
        count *= len(part)
    if count > MOST:
        raise UsageError(
            f"the sweep has {count} jobs, and the limit is {MOST}", "submit it in parts"
        )
    return [_merge(point) for point in itertools.product(*parts)]


def _merge(point: Iterable[Params]) -> Params:
    return {name: value for params in point for name, value in params.items()}
