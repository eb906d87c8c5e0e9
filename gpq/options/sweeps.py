"""`--array 0-99%4`, `--sweep lr=1e-3,1e-2` and `--sweep-file CSV` -> the elements of an array.
Raises UsageError."""

from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Iterator, Sequence

from gpq.errors import UsageError
from gpq.rpc import requests
from gpq.rpc.requests import ArrayMessage, SpecMessage

EXAMPLE = "for example --array 0-99, --array 0-99%4 (4 at once) or --array 1,3,8-20:4"
SWEEP_EXAMPLE = "for example --sweep lr=1e-3,1e-2 or --sweep seed=0..9"
PARAM = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}")
Params = dict[str, str]
MOST = 10_000
QUOTES = "\"'"
CLOSING = {"(": ")", "[": "]", "{": "}"}
QUOTED = re.compile(r"\"[^\"]*\"|'[^']*'")
RANGE = re.compile(r"(-?)(\d{1,18})\.\.(-?)(\d{1,18})")
BETWEEN = re.compile(r"[,:=;/()\[\]{}]")  # the parts of a value, such as the folders of a path


def array_of(array: str, sweeps: list[str], file: str) -> ArrayMessage | None:
    """None if none of the three options was given. `--array %4` together with a sweep is only its
    limit."""
    if not array and not sweeps and not file:
        return None
    text, percent, at_once = array.partition("%")
    if percent and not (re.fullmatch(r"\d{1,5}", at_once) and 1 <= int(at_once) <= MOST):
        raise UsageError(f"invalid --array {array!r}: expected a number of jobs after %", EXAMPLE)
    limit = int(at_once) if percent else 0
    if not sweeps and not file:
        return ArrayMessage(indices(text, array), limit=limit)
    if text:
        raise UsageError(
            f"--array {text} cannot be combined with --sweep",
            "the sweep already defines the jobs. `--array %4` limits how many run at once",
        )
    points = _combine([_from_file(file)] if file else [], [_grid(sweep) for sweep in sweeps])
    return ArrayMessage(list(range(len(points))), points, limit)


def first_words(words: Sequence[str], array: ArrayMessage | None) -> list[str]:
    """The words as the first job of the array gets them."""
    if array is None:
        return list(words)
    values = {"index": str(array.indices[0]), **(array.params or [{}])[0]}
    return [requests.fill_placeholders(word, values) for word in words]


def unused_lines(array: ArrayMessage, spec: SpecMessage) -> list[str]:
    """A line about each `${NAME}` that is left to the shell although `{NAME}` may have been meant.
    Also one if something swept is in no argument, because the job then has it only in its
    environment."""
    texts = [*spec.argv, *spec.resume_argv, spec.done_file, *spec.env.values()]
    written = {name for text in texts for name in requests.placeholders(text)}
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
    if not zeros or not any("index" in requests.placeholders(word) for word in texts):
        return []
    return [
        f"--array {text}: an index is a number, so {{index}} has no leading zeros."
        " --sweep i=001..010 keeps them"
    ]


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
    points = read(values, option)
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
    points = itertools.product(*parts)
    return [dict(pair for params in point for pair in params.items()) for point in points]


def read(text: str, option: str) -> list[str]:
    """Each value, in order. Raises UsageError, which names `option`."""
    return [value for piece in _pieces(text, option) for value in _values(piece, option)]


def _pieces(text: str, option: str) -> Iterator[str]:
    """The texts between commas outside of brackets and quotes, without surrounding blanks."""
    quote, closing, begin = "", [], 0
    for place, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in QUOTES:
            quote = letter
        elif letter in CLOSING:
            closing.append(CLOSING[letter])
        elif letter in CLOSING.values():
            if not closing or closing.pop() != letter:
                raise UsageError(f"{option}: {letter} has no opening bracket", _as_it_is(letter))
        elif letter == "," and not closing:
            yield text[begin:place].strip()
            begin = place + 1
    if quote:
        raise UsageError(f"{option}: a {quote} is not closed", _as_it_is(quote))
    if closing:
        raise UsageError(f"{option}: a {closing[-1]} is missing", _as_it_is(closing[-1]))
    yield text[begin:].strip()


def _as_it_is(letter: str) -> str:
    quote = QUOTES[letter == QUOTES[0]]
    return f"close it, or put a value that contains {letter} in quotes: {quote}a{letter}b{quote}"


def _values(piece: str, option: str) -> list[str]:
    if not piece:
        raise UsageError(
            f"{option}: a value is empty", 'remove the comma, or write "" for an empty value'
        )
    if piece[0] in QUOTES:
        end = piece.index(piece[0], 1)
        if end + 1 < len(piece):
            raise UsageError(
                f"{option}: {piece[end + 1 :][:80]} follows a value in quotes",
                "put a comma after the closing quote",
            )
        return [piece[1:end]]
    bounds = RANGE.fullmatch(piece)
    if bounds:
        return _numbers(bounds, option)
    bare = QUOTED.sub("", piece)
    if any(".." in part and part.strip() != ".." for part in BETWEEN.split(bare)):
        # `../data` is a path
        raise UsageError(
            f"{option}: {piece[:80]} is not a range of whole numbers",
            f'list the values, as in 0.1,0.2,0.3, or quote a single value: "{piece[:80]}"',
        )
    return [piece]


def _numbers(bounds: re.Match[str], option: str) -> list[str]:
    """Both ends and everything between, padded to their width if one starts with a zero."""
    first, last = bounds[2], bounds[4]
    low, high = int(bounds[1] + first), int(bounds[3] + last)
    if high < low:
        raise UsageError(
            f"{option}: range end is below its start in {bounds[0]}",
            f"did you mean {bounds[3]}{last}..{bounds[1]}{first}?",
        )
    padded = any(digits.startswith("0") and len(digits) > 1 for digits in (first, last))
    width = max(len(first), len(last))
    if padded and len(first) != len(last):
        raise UsageError(
            f"{option}: the ends of {bounds[0]} have different widths",
            f"use {bounds[1]}{first.zfill(width)}..{bounds[3]}{last.zfill(width)}, or"
            f" {low}..{high} without zeros",
        )
    if high - low >= MOST:
        raise UsageError(f"{option} has more than {MOST} jobs", "submit it in parts")
    digits = width if padded else 1
    # the sign comes before the zeros, and takes none of their places
    return [f"{number:0{digits + (number < 0)}d}" for number in range(low, high + 1)]
