"""The documents say what the program does: every command has an example, and the README's table is the program's own."""

from __future__ import annotations

import pytest

from gpq.cli import fast_path
from gpq.cli.completion.shell_scripts import SCRIPTS
from gpq.cli.generated import reference, schemas, submit_modules
from gpq.cli.shared.commands import COMMANDS
from tests.cli.conftest import ROOT

LEAVES = [path for path, _ in reference.leaves()]


MADE = [
    "README.md",
    "gpq/options/completion_data.py",
    *submit_modules.modules(),
    *(f"completions/gpq.{each}" for each in SCRIPTS),
    *schemas.files(),
]


@pytest.fixture(scope="module")
def documents() -> dict[str, str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        return reference.documents()


@pytest.mark.parametrize("path", MADE)
def test_what_is_made_from_the_commands_is_fresh(path: str, documents: dict[str, str]) -> None:
    assert reference.BEGIN in (ROOT / "README.md").read_text()
    assert documents[path] == (ROOT / path).read_text(), "make completions"


def test_the_table_names_every_command() -> None:
    rows = reference.table()
    for path in LEAVES:
        assert f"| `gpq {path}" in rows


def test_every_command_has_help_with_an_example_of_itself() -> None:
    for path, command in reference.leaves():
        help = command.help or ""
        assert "Example:" in help, path
        assert f"gpq {path}" in help.partition("Example:")[2] or path == "config path", path


@pytest.mark.parametrize("name", [*COMMANDS, "daemon start", "config show"])
def test_help_fits_eighty_columns_and_says_its_usage(
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
