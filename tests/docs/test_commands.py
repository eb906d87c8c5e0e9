"""The documents match the program: every command has an example, and the program generates the page of commands."""

from __future__ import annotations

import pytest

from gpq.cli import fast_path
from gpq.cli.app import names
from tests.cli.conftest import ROOT
from tests.generated import pages, reference, schemas

LEAVES = [path for path, _ in reference.leaves()]


MADE = [
    "docs/commands.md",
    "gpq/options/completion_data.py",
    "gpq/api/option_types.py",
    *schemas.files(),
]


@pytest.fixture(scope="module")
def documents() -> dict[str, str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        return reference.documents()


@pytest.mark.parametrize("path", MADE)
def test_files_generated_from_the_commands_are_up_to_date(path: str, documents: dict[str, str]) -> None:
    assert documents[path] == (ROOT / path).read_text(), "run make completions"


def test_the_page_has_a_section_with_an_example_for_every_command() -> None:
    page = pages.page(list(reference.leaves()))
    for path in LEAVES:
        section = page.partition(f"\n## gpq {path}\n")[2].partition("\n## ")[0]
        assert "\n$ " in section, path


def test_every_command_has_help_with_an_example_of_itself() -> None:
    for path, command in reference.leaves():
        help = command.help or ""
        assert "Example:" in help, path
        assert f"gpq {path}" in help.partition("Example:")[2] or path == "config path", path


@pytest.mark.parametrize("name", [*names(), "daemon start", "config show"])
def test_help_fits_eighty_columns_and_shows_its_usage(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert fast_path.run([*name.split(), "--help"]) == 0
    shown = capsys.readouterr().out
    assert f"gpq {name}" in shown
    paragraphs = shown.partition("Example:")
    assert max(map(len, paragraphs[0].splitlines())) <= 80


def test_options_have_help() -> None:
    for path, command in reference.leaves():
        for parameter in command.params:
            if parameter.param_type_name == "option" and parameter.name != "help":
                assert parameter.help, f"{path} {parameter.name}"
