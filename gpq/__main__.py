"""The door of the command line: `gpq status` and shell completion are answered here, all else goes to `gpq.cli.app`.

Imports neither typer nor rich nor msgspec nor re: those two commands are asked for more often than all others together.
"""

import os
import sys


def main() -> int:
    """The exit status of `gpq ARGV...`."""
    try:
        return _through_the_door(sys.argv[1:])
    except KeyboardInterrupt:  # the door answers this itself, once it is imported
        return 130


def _through_the_door(argv: list[str]) -> int:
    if argv[:1] == ["__complete"]:
        from gpq.cli.complete import answer

        try:
            code = answer(argv[1:])
        except OSError:  # the output takes no more: a shell that completes shows no complaint
            code = 1
        return leave(code)
    from gpq.cli import door

    code = door.run(argv)
    return leave(code) if argv[:1] == ["status"] else code


def leave(code: int) -> int:
    """End at once, without taking apart what was built: for a thousand jobs that is a tenth of the time."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:  # as above
        code = 1
    os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
