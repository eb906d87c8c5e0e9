"""The entry point of the command line. It answers shell completion itself and passes everything
else to `gpq.cli.fast_path`.

It imports neither typer nor rich nor msgspec nor re, because `gpq status` and completion run more
often than all other commands together.
"""

import os
import sys

from gpq.cli import streams


def main() -> int:
    """The exit status of `gpq ARGV...`."""
    try:
        streams.open_closed()
        own_packages_first()
        argv = sys.argv[1:]
        if argv[:1] == ["__complete"]:
            from gpq.cli.complete import answer

            try:
                code = answer(argv[1:])
            except OSError:  # the output failed, and a shell that completes shows no error
                code = 1
            return leave(code)
        from gpq.cli import fast_path

        code = fast_path.run(argv)
        return leave(code) if argv[:1] == ["status"] else code
    except KeyboardInterrupt:  # `fast_path` handles this once it is imported
        return 130
    except (ImportError, SyntaxError) as error:
        return _not_importable(error)


def own_packages_first() -> None:
    """Put gpq's own packages first. PYTHONPATH is for scripts, and its modules, perhaps of another
    Python, must not hide what gpq was installed with."""
    path = os.environ.get("PYTHONPATH")
    if not path:
        return
    folders = {os.path.abspath(entry) for entry in path.split(os.pathsep)}
    folders.discard(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

    def is_foreign(folder: str) -> bool:
        return folder in folders and not os.path.isdir(os.path.join(folder, "gpq_agent"))

    sys.path.sort(key=is_foreign)  # stable


def _not_importable(error: "ImportError | SyntaxError") -> int:
    """Print one line instead of a traceback, because not gpq but one of its packages is broken."""
    from traceback import extract_tb

    place = getattr(error, "filename", None) or extract_tb(error.__traceback__)[-1].filename
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    sys.stderr.write(f"gpq: cannot import a package that gpq needs: {text} ({place})\n")
    sys.stderr.write(
        "hint: reinstall gpq in its own environment, or unset PYTHONPATH if the package comes from"
        " there\n"
    )
    return 1


def leave(code: int) -> int:
    """Exit at once without cleaning up objects. With a thousand jobs that saves a tenth of the
    time."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:  # as above
        code = 1
    os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
