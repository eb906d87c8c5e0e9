"""The door of the command line: `gpq status` and shell completion are answered here, all else goes
to `gpq.cli.app`.

Imports neither typer nor rich nor msgspec nor re: those two commands are asked for more often than
all others together.
"""

import os
import sys


def main() -> int:
    """The exit status of `gpq ARGV...`."""
    try:
        own_packages_first()
        return _through_the_door(sys.argv[1:])
    except KeyboardInterrupt:  # the door answers this itself, once it is imported
        return 130
    except (ImportError, SyntaxError) as error:
        return _not_importable(error)


def own_packages_first() -> None:
    """PYTHONPATH is for scripts: a module's, of another Python perhaps, must not hide what gpq was
    installed with."""
    path = os.environ.get("PYTHONPATH")
    if not path:
        return
    folders = {os.path.abspath(entry) for entry in path.split(os.pathsep)}
    folders.discard(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    foreign = [
        folder
        for folder in sys.path
        if folder in folders and not os.path.isdir(os.path.join(folder, "gpq_agent"))
    ]
    sys.path[:] = [folder for folder in sys.path if folder not in foreign] + foreign


def _not_importable(error: "ImportError | SyntaxError") -> int:
    """One line instead of a traceback: gpq itself is fine, and what it stands on is not."""
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    place = getattr(error, "filename", None) or (
        at.tb_frame.f_code.co_filename if at is not None else ""
    )
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    sys.stderr.write(f"gpq: cannot import a package that gpq needs: {text} ({place})\n")
    sys.stderr.write(
        "hint: reinstall gpq in its own environment, or unset PYTHONPATH if the package comes from"
        " there\n"
    )
    return 1


def _through_the_door(argv: list[str]) -> int:
    if argv[:1] == ["__complete"]:
        from gpq.cli.completion.complete import answer

        try:
            code = answer(argv[1:])
        except OSError:  # the output takes no more: a shell that completes shows no complaint
            code = 1
        return leave(code)
    from gpq.cli import fast_path

    code = fast_path.run(argv)
    return leave(code) if argv[:1] == ["status"] else code


def leave(code: int) -> int:
    """End at once, without taking apart what was built: for a thousand jobs that is a tenth of the
    time."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:  # as above
        code = 1
    os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
