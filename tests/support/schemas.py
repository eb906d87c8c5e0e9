"""Compares what a command printed with `--json` with the schema that the package ships."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from gpq.cli import fast_path
from gpq.cli.lab.schema import name_of
from gpq.options.completion_data import GRAMMAR
from tests.generated.printed import STREAMS

ROOT = Path(__file__).resolve().parents[2]
DEFAULTS = {"nodes": "nodes list", "config": "config show"}


@cache
def validator(path: str) -> Draft202012Validator:
    return Draft202012Validator(json.loads((ROOT / "gpq" / "schemas" / f"{name_of(path)}.json").read_text()))


def check(path: str, printed: str) -> list[Any]:
    """The decoded output of the command. All of it is valid, and each line on its own if it streams."""
    lines = printed.splitlines() if path in STREAMS else [printed] if printed else []
    found = [json.loads(line) for line in lines]
    for each in found:
        problem = next(iter(validator(path).iter_errors(each)), None)
        assert problem is None, f"gpq {path} --json: {problem}"
    return found


def check_call(argv: Sequence[str], printed: str) -> None:
    """The same for the words of a command line, if they ask for JSON."""
    if fast_path.wants_json(list(argv)) and (path := command(argv)):
        check(path, printed)


def command(argv: Sequence[str]) -> str:
    """`nodes drain` for `nodes drain gpu1 --json`, or "" if it is no command."""
    for path in (" ".join(argv[:2]), argv[0], DEFAULTS.get(argv[0], "")):
        if path in GRAMMAR:
            return path
    return ""
