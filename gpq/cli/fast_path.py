"""The path of every command. Answers status, submit and completion scripts without typer. Prints
errors as a line and a hint, and handles Ctrl-C and an output that fails (a closed pipe, a full
disk)."""

import os
import sys

from gpq import paths
from gpq.cli import streams
from gpq.errors import GpqError, UsageError

TYPE_CHECKING = False  # typing's own would have to be imported
if TYPE_CHECKING:
    from typing import Any

FLAGS = {"--json": "json", "--all": "all", "-a": "all"}
VALUES = {"--color": "color", "--user": "user", "-u": "user"}
# words after such a file belong to it
SCRIPTS = (".py", ".sh", ".bash", ".zsh", ".sbatch", ".slurm", ".job")


def run(argv: list[str]) -> int:
    """Exit status of `gpq ARGV...`."""
    streams.watch()
    code = 0
    try:
        try:
            code = _answer(argv)
        except GpqError as error:
            code = error.code
            report(error, as_json=wants_json(argv))
        except FileNotFoundError:
            if not _is_nowhere():
                raise
            code = report(UsageError(*paths.GONE), as_json=wants_json(argv))
        except KeyboardInterrupt:
            code = 130
        sys.stdout.flush()
    except BrokenPipeError:
        streams.drop()  # the reader has enough
    except OSError as error:
        if not streams.has_failed():
            raise
        streams.complain(error)
        return 1
    return code


def _is_nowhere() -> bool:
    """Has somebody removed the current directory?"""
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def _answer(argv: list[str]) -> int:
    if argv[:1] == ["submit"]:
        from gpq.options.submit_request import parse as parse_submit

        parsed = parse_submit(argv[1:])
        if parsed is not None:
            from gpq.cli.jobs.submit_fast import run as submit

            return submit(parsed)
    elif argv[:1] == ["status"]:
        options = parse(argv[1:])
        if options is not None:
            from gpq.cli.jobs.status_fast import show

            return show(**options)
    elif argv[:1] == ["completion"] and len(argv) == 2:  # runs at every start of a shell
        from gpq.cli.shell_scripts import SHELLS, script

        if argv[1] in SHELLS:
            sys.stdout.write(script(argv[1]))
            return 0
    from gpq.cli.app import dispatch

    return dispatch(argv)


def parse(argv: list[str]) -> "dict[str, Any] | None":
    """The options of `gpq status` if they are plain. None if typer must read them (help,
    mistakes)."""
    options: dict[str, Any] = {}
    jobs: list[str] = []
    words = iter(argv)
    for word in words:
        name, assigned, value = word.partition("=")
        if word in FLAGS:
            options[FLAGS[word]] = True
        elif name in VALUES and (assigned or (value := next(words, ""))) and value:
            if VALUES[name] in options:
                return None
            options[VALUES[name]] = value
        elif word.startswith("-"):
            return None
        else:
            jobs.append(word)
    if options.get("color", "auto") not in ("auto", "always", "never"):
        return None
    options["jobs"] = jobs
    return options


def report(error: GpqError, *, as_json: bool) -> int:
    """Print an error: one line and a hint on stderr, or both as JSON on stdout. Returns its exit
    status."""
    from gpq.views.plain import safe

    if as_json:
        from gpq.client.quick import encode

        message = "\n".join([error.message, *error.quoted])
        sys.stdout.write(encode({"error": message, "hint": error.hint}) + "\n")
        return error.code
    sys.stderr.write(f"gpq: {safe(error.message)}\n")
    for line in error.quoted:
        sys.stderr.write(f"  {safe(line)}\n")
    if error.hint:
        sys.stderr.write(f"hint: {safe(error.hint)}\n")
    return error.code


def wants_json(argv: list[str]) -> bool:
    """Is --json one of gpq's own options? Options of a submitted command or script do not count."""
    for word in argv:
        if word == "--" or (argv[0] in ("submit", "check") and word.endswith(SCRIPTS)):
            return False
        if word == "--json":
            return True
    return False
