"""`gpq __complete SHELL WORD...`: what the last word may become. Asks a running daemon and starts
none; never complains.

Prints one candidate a line; for fish its description after a tab, for zsh:COLUMNS how it is shown,
and so for bash:COLUMNS, instead of the candidate. Exit status 9: file names. 10: what follows `--`
is a command's line, which the shell completes as its own.
"""

import sys

FILES = 9
COMMAND = 10
EVERYWHERE = {"--help": ("Show what this command does.", "")}
Pair = tuple[str, str]  # word, description


class Line:
    """What is being completed: for which shell, and of which command."""

    __slots__ = ("path", "shell")

    def __init__(self, shell: str, path: str = "") -> None:
        self.shell, self.path = shell, path


def answer(argv: list[str]) -> int:
    shell, _, width = argv[0].partition(":") if argv else ("bash", "", "")
    words = argv[1:] or [""]
    found = candidates(joined(words) if shell == "bash" else words, shell)
    if isinstance(found, int):
        return found
    columns = int(width) if width.isdigit() else 0
    sys.stdout.write(SHELLS.get(shell, bash)(found, columns))
    return 0


def joined(words: list[str]) -> list[str]:
    """bash breaks words at = and :, this puts `--color = al` together again. The last word keeps
    only what follows the break."""
    whole: list[str] = []
    for word in words:
        if word == "=" and whole and whole[-1].startswith("--"):
            whole.append("")
        else:
            whole.append(word)
    return [word for index, word in enumerate(whole) if word or index == len(whole) - 1]


def bash(found: list[Pair], columns: int) -> str:
    """The words; where bash says how wide it is, it shows several and inserts none: then with their
    descriptions, each so wide that it has a row of its own."""
    if not columns or len(found) < 2 or not any(said for _, said in found):
        return "".join(f"{word}\n" for word, _ in found)
    longest = max(len(word) for word, _ in found)
    return "".join(f"{row[: columns - 2]:{columns // 2}}\n" for row in beside(found, longest, "  "))


def zsh(found: list[Pair], columns: int) -> str:
    """Word, tab, how it is shown."""
    longest = max((len(word) for word, _ in found), default=0)
    rows = beside(found, longest, "  -- ")
    return "".join(
        f"{word}\t{row[: max(columns - 1, longest)]}\n"
        for (word, _), row in zip(found, rows, strict=True)
    )


def fish(found: list[Pair], columns: int) -> str:
    from gpq.views.plain import safe

    return "".join(f"{word}\t{safe(said)}\n" for word, said in found)


def beside(found: list[Pair], longest: int, between: str) -> list[str]:
    """Each word with its description."""
    from gpq.views.plain import safe

    return [f"{word:{longest}}{between}{safe(said)}" if said else word for word, said in found]


SHELLS = {"zsh": zsh, "fish": fish}


def candidates(words: list[str], shell: str) -> list[Pair] | int:
    """(word, description) for the last of `words`, those before it being typed already; or FILES,
    or COMMAND."""
    from gpq.cli.shared.commands import COMMANDS

    current = words[-1]
    if len(words) == 1:
        listed = {name: line for name, (_, line) in COMMANDS.items()}
        return starting([*listed.items(), ("--help", "What there is."), ("--version", "")], current)
    from gpq.options.completion_data import GRAMMAR

    path, rest = words[0], words[1:]
    if path not in GRAMMAR:
        inner = {
            key.partition(" ")[2]: GRAMMAR[key] for key in GRAMMAR if key.startswith(f"{path} ")
        }
        if not inner:
            return []
        default = f"{path} list" if "list" in inner else ""  # need not be named
        if len(rest) == 1 and not (default and current.startswith("-")):
            names = starting([(name, "") for name in inner] + [("--help", "")], current)
            more = within(Line(shell, default), *GRAMMAR[default], rest) if default else []
            return names if isinstance(more, int) else names + more
        if default and rest[0] not in inner:
            path = default
        else:
            path, rest = f"{path} {rest[0]}", rest[1:]
        if path not in GRAMMAR:
            return []
    return within(Line(shell, path), *GRAMMAR[path], rest)


def within(
    line: Line, kind: str, options: dict[str, tuple[str, str]], rest: list[str]
) -> list[Pair] | int:
    """The candidates after a command: a value of the option before, an option, or an argument."""
    current, given = rest[-1], list[str]()
    wants, literal = "", False  # the kind of value that the word before asks for; behind `--`
    for word in rest[:-1]:
        if wants:
            wants = ""
        elif word == "--" and not literal:
            if line.path == "submit":
                return COMMAND
            literal = True
        elif literal or not word.startswith("-"):
            if line.path in ("submit", "check"):
                return FILES  # the words of the script
            given.append(word)
        elif "=" not in word:
            wants = options.get(word, ("", ""))[1]
    if wants:
        return values(line, wants, current, given if wants == "jobs" else [])
    name, assigned, value = current.partition("=")
    if assigned and name in options and not literal:
        found = values(line, options[name][1], value, given if options[name][1] == "jobs" else [])
        return (
            found if isinstance(found, int) else [(f"{name}={word}", said) for word, said in found]
        )
    if current.startswith("-") and not literal:
        listed = [
            (word, said)
            for word, (said, _) in {**options, **EVERYWHERE}.items()
            if word.startswith("--")
        ]
        return starting(listed, current)
    return documented(rest) if kind == "commands" else values(line, kind, current, given)


def documented(words: list[str]) -> list[Pair]:
    """The next word of a command that prints JSON, and so has a schema: `nodes`, then `list`."""
    from gpq.cli.shared.commands import COMMANDS
    from gpq.options.completion_data import GRAMMAR

    *typed, current = words
    found: dict[str, str] = {}
    for path, (_, options) in GRAMMAR.items():
        name, *inner = path.split(" ")
        if (
            "--json" in options
            and [name, *inner][: len(typed)] == typed
            and len(inner) >= len(typed)
        ):
            found.setdefault([name, *inner][len(typed)], "" if typed else COMMANDS[name][1])
    return starting(list(found.items()), current)


def values(line: Line, kind: str, current: str, given: list[str]) -> list[Pair] | int:
    """What a value of this kind may be. `given`: the arguments that are typed already."""
    if kind == "files":
        return FILES
    if kind in ("job", "node"):  # exactly one
        return [] if given else asked(line, f"{kind}s", current, given)
    if kind in ("jobs", "nodes", "users"):
        return asked(line, kind, current, given)
    if "|" not in kind:
        return []
    head, comma, tail = current.rpartition(",")  # of several, the last
    return [(f"{head}{comma}{word}", "") for word in kind.split("|") if word.startswith(tail)]


def asked(line: Line, kind: str, current: str, given: list[str]) -> list[Pair]:
    """Words from the daemon. Of `3,4` only what follows the last comma is completed."""
    from gpq.client import quick
    from gpq.errors import GpqError

    head, comma, tail = current.rpartition(",") if kind == "jobs" else ("", "", current)
    request: dict[str, object] = {"kind": kind, "prefix": tail}
    named = [part.partition(":")[0] for word in [*given, head] for part in word.split(",") if part]
    if kind == "jobs":
        request |= {"command": line.path, "given": named}
    try:
        found = quick.ask("complete", request, timeout=2.0)["words"]
    except (GpqError, KeyError):
        return []
    found = [(word, said) for word, said in found if word.isprintable() and word not in named]
    if kind == "jobs" and line.shell == "bash" and not tail.strip("0123456789"):
        found = [pair for pair in found if pair[0].isdigit()] or found  # names, once they are begun
    return [(f"{head}{comma}{word}", said) for word, said in found]


def starting(pairs: list[Pair], prefix: str) -> list[Pair]:
    return [pair for pair in pairs if pair[0].startswith(prefix)]
