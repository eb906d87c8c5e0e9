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
    completions = candidates(joined(words) if shell == "bash" else words, shell)
    if isinstance(completions, int):
        return completions
    columns = int(width) if width.isdigit() else 0
    sys.stdout.write(SHELLS.get(shell, bash)(completions, columns))
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


def bash(pairs: list[Pair], columns: int) -> str:
    """The words; where bash says how wide it is, it shows several and inserts none: then with their
    descriptions, each so wide that it has a row of its own."""
    if not columns or len(pairs) < 2 or not any(description for _, description in pairs):
        return "".join(f"{word}\n" for word, _ in pairs)
    longest = max(len(word) for word, _ in pairs)
    return "".join(f"{row[: columns - 2]:{columns // 2}}\n" for row in beside(pairs, longest, "  "))


def zsh(pairs: list[Pair], columns: int) -> str:
    """Word, tab, how it is shown."""
    longest = max((len(word) for word, _ in pairs), default=0)
    rows = beside(pairs, longest, "  -- ")
    return "".join(
        f"{word}\t{row[: max(columns - 1, longest)]}\n"
        for (word, _), row in zip(pairs, rows, strict=True)
    )


def fish(pairs: list[Pair], columns: int) -> str:
    from gpq.views.plain import safe

    return "".join(f"{word}\t{safe(description)}\n" for word, description in pairs)


def beside(pairs: list[Pair], longest: int, between: str) -> list[str]:
    """Each word with its description."""
    from gpq.views.plain import safe

    return [
        f"{word:{longest}}{between}{safe(description)}" if description else word
        for word, description in pairs
    ]


SHELLS = {"zsh": zsh, "fish": fish}


def candidates(words: list[str], shell: str) -> list[Pair] | int:
    """(word, description) for the last of `words`, those before it being typed already; or FILES,
    or COMMAND."""
    from gpq.cli.shared.commands import COMMANDS

    current = words[-1]
    if len(words) == 1:
        summaries = {name: line for name, (_, line) in COMMANDS.items()}
        return starting(
            [*summaries.items(), ("--help", "What there is."), ("--version", "")], current
        )
    from gpq.options.completion_data import GRAMMAR

    path, tail = words[0], words[1:]
    if path not in GRAMMAR:
        inner = {
            key.partition(" ")[2]: GRAMMAR[key] for key in GRAMMAR if key.startswith(f"{path} ")
        }
        if not inner:
            return []
        default = f"{path} list" if "list" in inner else ""  # need not be named
        if len(tail) == 1 and not (default and current.startswith("-")):
            names = starting([(name, "") for name in inner] + [("--help", "")], current)
            arguments = within(Line(shell, default), *GRAMMAR[default], tail) if default else []
            return names if isinstance(arguments, int) else names + arguments
        if default and tail[0] not in inner:
            path = default
        else:
            path, tail = f"{path} {tail[0]}", tail[1:]
        if path not in GRAMMAR:
            return []
    return within(Line(shell, path), *GRAMMAR[path], tail)


def within(
    line: Line, kind: str, options: dict[str, tuple[str, str]], words: list[str]
) -> list[Pair] | int:
    """The candidates after a command: a value of the option before, an option, or an argument."""
    current, arguments = words[-1], list[str]()
    wants, literal = "", False  # the kind of value that the word before asks for; behind `--`
    for word in words[:-1]:
        if wants:
            wants = ""
        elif word == "--" and not literal:
            if line.path == "submit":
                return COMMAND
            literal = True
        elif literal or not word.startswith("-"):
            if line.path in ("submit", "check"):
                return FILES  # the words of the script
            arguments.append(word)
        elif "=" not in word:
            wants = options.get(word, ("", ""))[1]
    if wants:
        return values(line, wants, current, arguments if wants == "jobs" else [])
    name, assigned, value = current.partition("=")
    if assigned and name in options and not literal:
        completions = values(
            line, options[name][1], value, arguments if options[name][1] == "jobs" else []
        )
        return (
            completions
            if isinstance(completions, int)
            else [(f"{name}={word}", description) for word, description in completions]
        )
    if current.startswith("-") and not literal:
        offers = [
            (word, description)
            for word, (description, _) in {**options, **EVERYWHERE}.items()
            if word.startswith("--")
        ]
        return starting(offers, current)
    return documented(words) if kind == "commands" else values(line, kind, current, arguments)


def documented(words: list[str]) -> list[Pair]:
    """The next word of a command that prints JSON, and so has a schema: `nodes`, then `list`."""
    from gpq.cli.shared.commands import COMMANDS
    from gpq.options.completion_data import GRAMMAR

    *path_words, current = words
    next_words: dict[str, str] = {}
    for path, (_, options) in GRAMMAR.items():
        name, *inner = path.split(" ")
        if (
            "--json" in options
            and [name, *inner][: len(path_words)] == path_words
            and len(inner) >= len(path_words)
        ):
            next_words.setdefault(
                [name, *inner][len(path_words)], "" if path_words else COMMANDS[name][1]
            )
    return starting(list(next_words.items()), current)


def values(line: Line, kind: str, current: str, arguments: list[str]) -> list[Pair] | int:
    """What a value of this kind may be. `arguments`: those that are typed already."""
    if kind == "files":
        return FILES
    if kind in ("job", "node"):  # exactly one
        return [] if arguments else daemon_words(line, f"{kind}s", current, arguments)
    if kind in ("jobs", "nodes", "users"):
        return daemon_words(line, kind, current, arguments)
    if "|" not in kind:
        return []
    head, comma, tail = current.rpartition(",")  # of several, the last
    return [(f"{head}{comma}{word}", "") for word in kind.split("|") if word.startswith(tail)]


def daemon_words(line: Line, kind: str, current: str, arguments: list[str]) -> list[Pair]:
    """Words from the daemon. Of `3,4` only what follows the last comma is completed."""
    from gpq.client import quick
    from gpq.errors import GpqError

    head, comma, tail = current.rpartition(",") if kind == "jobs" else ("", "", current)
    request: dict[str, object] = {"kind": kind, "prefix": tail}
    typed_names = [
        part.partition(":")[0] for word in [*arguments, head] for part in word.split(",") if part
    ]
    if kind == "jobs":
        request |= {"command": line.path, "given": typed_names}
    try:
        pairs = quick.ask("complete", request, timeout=2.0)["words"]
    except (GpqError, KeyError):
        return []
    pairs = [
        (word, description)
        for word, description in pairs
        if word.isprintable() and word not in typed_names
    ]
    if kind == "jobs" and line.shell == "bash" and not tail.strip("0123456789"):
        pairs = [pair for pair in pairs if pair[0].isdigit()] or pairs  # names, once they are begun
    return [(f"{head}{comma}{word}", description) for word, description in pairs]


def starting(pairs: list[Pair], prefix: str) -> list[Pair]:
    return [pair for pair in pairs if pair[0].startswith(prefix)]
