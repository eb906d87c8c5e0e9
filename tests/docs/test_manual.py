"""Manual pages: made from the help, whole, and without a complaint of the program that sets them."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import Any

import pytest

from gpq.cli.generated import man_pages, reference
from gpq.cli.shared.commands import COMMANDS
from tests.cli.conftest import ROOT

PAGES = man_pages.pages()


def test_there_is_a_page_for_each_command_and_no_other() -> None:
    assert set(PAGES) == {"gpq.1", *(f"gpq-{name}.1" for name in COMMANDS)}
    assert {path.name for path in (ROOT / "gpq" / "man").iterdir()} == set(PAGES)


@pytest.mark.parametrize("name", PAGES)
def test_the_pages_are_fresh(name: str) -> None:
    assert (ROOT / "gpq" / "man" / name).read_text() == PAGES[name], "make completions"


@pytest.mark.parametrize("name", PAGES)
def test_a_default_is_what_one_would_type(name: str) -> None:
    assert re.findall(r"\[default: [A-Z]\w*\.\w+\]", PAGES[name]) == []


@pytest.mark.parametrize(("path", "found"), [pytest.param(*each, id=each[0]) for each in reference.leaves()])
def test_a_usage_line_has_the_arguments_as_they_are_written(path: str, found: Any) -> None:
    """typer puts braces around `JOB...`."""
    written = [str(each.metavar or each.name) for each in found.params if each.param_type_name == "argument"]
    with found.make_context(f"gpq {path}", [], resilient_parsing=True) as context:
        assert found.collect_usage_pieces(context) == ["[OPTIONS]", *written]


@pytest.mark.parametrize("name", PAGES)
def test_they_are_set_without_a_warning_and_say_everything(name: str) -> None:
    if shutil.which("groff") is None:
        pytest.skip("groff is not installed")
    done = subprocess.run(
        ["groff", "-man", "-Tascii", "-P-c", "-P-b", "-P-u", "-ww", "-rLL=100n"],
        input=PAGES[name], capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stderr == ""
    text = " ".join(done.stdout.split())
    inside = name.removeprefix("gpq-").removesuffix(".1")
    for path, found in reference.leaves():
        if path.split()[0] != inside:
            continue
        assert f"gpq {path}" in text
        for parameter in found.params:
            for option in parameter.opts if parameter.param_type_name == "option" else ():
                assert option in text, f"{path} {option}"
        example = found.help.partition("Example:")[2].strip().splitlines()[0]
        assert " ".join(example.split()) in text
