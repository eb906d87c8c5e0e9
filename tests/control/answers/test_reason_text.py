"""Each code of the core has its sentence, and the sentence names the code's facts."""

from __future__ import annotations

import ast
import string
from collections.abc import Iterator
from pathlib import Path

import gpq.core.explain
from gpq.control import detail
from gpq.control.sentences import FORMATS, SENTENCES

SOURCES = [*sorted(Path(gpq.core.explain.__file__).parent.glob("*.py")), Path(detail.__file__)]
DYNAMIC = {  # codes that a function chooses before it calls `reason`
    *("asked-to-end", "asked-to-checkpoint", "idle-keeps", "idle-shrinks"),
    *("too-large-for-all", "too-large-for-server"),
    *("waits-for-success", "waits-for-failure", "waits-for-end"),
    *("gate-unmet", "gate-after", "gate-begin", "gate-array"),
    *("more-gpus-but-idle", "more-gpus-but-just-moved", "more-gpus-not-worth-restart"),
}


def calls() -> Iterator[tuple[str, set[str | None]]]:
    """Codes with the names of their facts, as the code gives them. None: `**worth`."""
    for source in SOURCES:
        for call in ast.walk(ast.parse(source.read_text())):
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or not call.args:
                continue
            code = call.args[0]
            if call.func.id not in ("reason", "lines") or not isinstance(code, ast.Constant):
                continue
            facts = {keyword.arg for keyword in call.keywords}
            yield str(code.value), {"line"} if call.func.id == "lines" else facts


def test_each_code_has_its_sentence_and_no_sentence_is_left_over() -> None:
    assert {code for code, _ in calls()} | DYNAMIC == set(SENTENCES)


def test_a_sentence_names_only_facts_that_its_reason_has() -> None:
    for code, facts in calls():
        fields = {name for _, name, _, _ in string.Formatter().parse(SENTENCES[code]) if name is not None}
        missing = fields - facts - ({"gpus", "ratio"} if None in facts else set())
        assert not missing, (code, missing)


def test_each_format_of_a_fact_is_used() -> None:
    specs = {spec for text in SENTENCES.values() for _, _, spec, _ in string.Formatter().parse(text)}
    assert set(FORMATS) <= specs
