"""The door of the command line: `gpq status` and shell completion are answered here, all else goes to `gpq.cli.app`.

Imports neither typer nor rich nor msgspec nor re: those two commands are asked for more often than all others together.
"""

import sys


def main() -> int:
    """The exit status. A GpqError becomes one line and a hint; anything else is a bug and shows its traceback."""
    argv = sys.argv[1:]
    if argv[:1] == ["__complete"]:
        from gpq.cli.complete import answer

        return answer(argv[1:])
    from gpq.cli import door

    return door.run(argv)


if __name__ == "__main__":
    sys.exit(main())
