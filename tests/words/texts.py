"""Which texts people read, and what the rules say against them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.generated import reference
from tests.words import messages, phrases, reading
from tests.words.markdown import paragraphs

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("gpq", "agent/gpq_agent")
GENERATED = ("gpq/options/completion_data.py",)
# Literals that another program reads begin so: Python, shell, HTML and CSS.
PROGRAMS = (
    "import ",
    "eval ",
    "exec /bin/sh",
    "mkdir -p",
    "<!doctype",
    ":root{",
    "remove them there: for id in",
)


@dataclass(frozen=True)
class Passage:
    """One text and where it is."""

    path: str
    line: int
    text: str


def documents() -> list[Path]:
    """Everything in Markdown that a user or a contributor opens, figures of benchmarks aside."""
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def kinds(*, inside: bool) -> dict[str, list[Passage]]:
    """Name of a kind -> its passages; docstrings and comments with `inside`."""
    by_kind = {
        "README": list(_of_document(ROOT / "README.md")),
        "docs": [part for path in documents() if path.name != "README.md" for part in _of_document(path)],
        "help": list(_help()),
        "messages": [part for path in sources() for part in _of_source(path, "messages")],
    }
    if inside:
        by_kind["docstrings"] = [part for path in sources() for part in _of_source(path, "docstrings")]
        by_kind["comments"] = [part for path in sources() for part in _of_source(path, "comments")]
    return by_kind


def sources() -> Iterator[Path]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if str(path.relative_to(ROOT)) not in GENERATED:
                yield path


def faults(text: str) -> Iterator[str]:
    for phrase, plain in phrases.found(text):
        yield f"“{phrase}”: {plain}"
    if reading.SEMICOLON.search(text):
        yield f"a semicolon: {text[:90]!r}"
    for sentence in reading.sentences(text):
        count = len(reading.words(sentence))
        if count > reading.LONG:
            yield f"{count} words: {sentence[:90]!r}"


def _of_document(path: Path) -> Iterator[Passage]:
    for line, text in paragraphs(path.read_text(encoding="utf-8")):
        yield Passage(str(path.relative_to(ROOT)), line, text)


def _of_source(path: Path, kind: str) -> Iterator[Passage]:
    collect = getattr(messages, kind)
    name = str(path.relative_to(ROOT))
    for line, text in collect(path):
        if text.strip().startswith(PROGRAMS):
            continue
        for paragraph in text.split("\n\n"):
            yield Passage(name, line, paragraph)


def _help() -> Iterator[Passage]:
    for name, command in reference.leaves():
        for paragraph in (command.help or "").partition("Example:")[0].split("\n\n"):
            yield Passage(f"gpq {name} --help", 0, paragraph)
        for parameter in command.params:
            yield Passage(f"gpq {name} --help", 0, getattr(parameter, "help", "") or "")
