"""Manual pages: generated from the help, complete, and typeset without a warning."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import Any

import pytest

from gpq.cli.app import names
from tests.cli.conftest import ROOT
from tests.generated import man_pages, reference

PAGES = man_pages.pages()


def test_there_is_exactly_one_page_for_each_command() -> None:
    assert set(PAGES) == {"gpq.1", *(f"gpq-{name}.1" for name in names())}
    assert {path.name for path in (ROOT / "gpq" / "man").iterdir()} == set(PAGES)


@pytest.mark.parametrize("name", PAGES)
def test_the_pages_are_up_to_date(name: str) -> None:
    assert (ROOT / "gpq" / "man" / name).read_text() == PAGES[name], "run make completions"


@pytest.mark.parametrize("name", PAGES)
def test_a_default_is_shown_as_a_user_would_type_it(name: str) -> None:
    assert re.findall(r"\[default: [A-Z]\w*\.\w+\]", PAGES[name]) == []


@pytest.mark.parametrize(("path", "found"), [pytest.param(*each, id=each[0]) for each in reference.leaves()])
def test_a_usage_line_shows_the_arguments_as_users_write_them(path: str, found: Any) -> None:
    """Typer alone would put braces around `JOB...`."""
    written = [str(each.metavar or each.name) for each in found.params if each.param_type_name == "argument"]
    with found.make_context(f"gpq {path}", [], resilient_parsing=True) as context:
        assert found.collect_usage_pieces(context) == ["[OPTIONS]", *written]


@pytest.mark.parametrize("name", PAGES)
def test_groff_typesets_each_page_without_a_warning_and_nothing_is_missing(name: str) -> None:
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
