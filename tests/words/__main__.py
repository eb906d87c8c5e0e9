"""Prints how the texts of gpq read: python -m tests.words [--beside NAME=FILE]... [--faults [PATH]...]."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

from tests.words import reading, texts
from tests.words.markdown import paragraphs

HEAD = f"{'texts':<28}{'words':>8}{'median':>8}{'over 30':>9}{'semicolons':>12}{'Flesch':>8}"


def line(name: str, passages: Iterable[str]) -> str:
    found = reading.figures(passages)
    return f"{name:<28}{found.words:>8,}{found.median:>8.0f}{found.long:>9}{found.semicolons:>12}{found.ease:>8.1f}"


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.words", description=__doc__)
    parser.add_argument("--beside", action="append", default=[], metavar="NAME=FILE")
    parser.add_argument("--faults", nargs="*", metavar="PATH", help="what the rules refuse, below PATH")
    parser.add_argument("--inside", action="store_true", help="docstrings and comments too")
    options = parser.parse_args(argv)
    if options.faults is not None:
        return list_faults([Path(path).resolve() for path in options.faults], inside=options.inside)
    print(HEAD)
    for name, passages in texts.kinds(inside=options.inside).items():
        print(line(name, (passage.text for passage in passages)))
    for pair in options.beside:
        name, _, path = pair.partition("=")
        document = Path(path).read_text(encoding="utf-8")
        print(line(name, (text for _, text in paragraphs(document))))
    return 0


def list_faults(below: list[Path], *, inside: bool) -> int:
    count = 0
    for passages in texts.kinds(inside=inside).values():
        for passage in passages:
            path = (texts.ROOT / passage.path).resolve()
            if below and not any(path.is_relative_to(folder) for folder in below):
                continue
            for fault in texts.faults(passage.text):
                print(f"{passage.path}:{passage.line}: {fault}")
                count += 1
    return min(count, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
