"""`gpq __complete SHELL WORD...`: what the last word may become. Asks a running daemon and starts none; never complains.

Prints one candidate a line, with its description after a colon for zsh, after a tab for fish. Exit status 9: file names.
"""

import sys

FILES = 9
EVERYWHERE = {"--help": ("Show what this command does.", "")}


def answer(argv: list[str]) -> int:
    shell, words = (argv[0], argv[1:] or [""]) if argv else ("bash", [""])
    if shell == "bash":
        words = joined(words)
    found = candidates(words)
    if found is None:
        return FILES
    sys.stdout.write("".join(map(FORMATS.get(shell, plain), found)))
    return 0


def joined(words: list[str]) -> list[str]:
    """bash breaks words at = and :, this puts `--color = al` together again. The last word keeps only what follows the break."""
    whole: list[str] = []
    for word in words:
        if word == "=" and whole and whole[-1].startswith("--"):
            whole.append("")
        else:
            whole.append(word)
    return [word for index, word in enumerate(whole) if word or index == len(whole) - 1]


def plain(pair: tuple[str, str]) -> str:
    return f"{pair[0]}\n"


def zsh(pair: tuple[str, str]) -> str:
    from gpq.views.plain import safe

    word = pair[0].replace("\\", "\\\\").replace(":", "\\:")
    return f"{word}:{safe(pair[1])}\n" if pair[1] else f"{word}\n"


def fish(pair: tuple[str, str]) -> str:
    from gpq.views.plain import safe

    return f"{pair[0]}\t{safe(pair[1])}\n"


FORMATS = {"zsh": zsh, "fish": fish}


def candidates(words: list[str]) -> list[tuple[str, str]] | None:
    """(word, description) for the last of `words`, those before it being typed already; None = file names."""
    from gpq.cli.commands import COMMANDS

    current = words[-1]
    if len(words) == 1:
        listed = {name: line for name, (_, line) in COMMANDS.items()}
        return starting([*listed.items(), ("--help", "What there is."), ("--version", "")], current)
    from gpq.cli.grammar import GRAMMAR

    path, rest = words[0], words[1:]
    if path not in GRAMMAR:
        inner = {key.partition(" ")[2]: GRAMMAR[key] for key in GRAMMAR if key.startswith(f"{path} ")}
        if not inner:
            return []
        default = f"{path} list" if "list" in inner else ""  # need not be named
        if len(rest) == 1 and not (default and current.startswith("-")):
            names = starting([(name, "") for name in inner] + [("--help", "")], current)
            return names + (within(*GRAMMAR[default], rest, submit=False) or []) if default else names
        if default and rest[0] not in inner:
            path = default
        else:
            path, rest = f"{path} {rest[0]}", rest[1:]
        if path not in GRAMMAR:
            return []
    kind, options = GRAMMAR[path]
    return within(kind, options, rest, submit=path == "submit")


def within(
    kind: str, options: dict[str, tuple[str, str]], rest: list[str], *, submit: bool
) -> list[tuple[str, str]] | None:
    """The candidates after a command: a value of the option before, an option, or an argument."""
    current = rest[-1]
    wants = ""  # kind of the value that the word before asks for
    for word in rest[:-1]:
        if wants:
            wants = ""
        elif word == "--" or (submit and not word.startswith("-")):
            return None  # the words of the job's own command
        elif word.startswith("-") and "=" not in word:
            wants = options.get(word, ("", ""))[1]
    if wants:
        return values(wants, current)
    name, assigned, value = current.partition("=")
    if assigned and name in options:
        found = values(options[name][1], value)
        return None if found is None else [(f"{name}={word}", said) for word, said in found]
    if current.startswith("-"):
        listed = [(word, said) for word, (said, _) in {**options, **EVERYWHERE}.items() if word.startswith("--")]
        return starting(listed, current)
    return documented(rest) if kind == "commands" else values(kind, current)


def documented(words: list[str]) -> list[tuple[str, str]]:
    """The next word of a command that prints JSON, and so has a schema: `nodes`, then `list`."""
    from gpq.cli.commands import COMMANDS
    from gpq.cli.grammar import GRAMMAR

    *typed, current = words
    found: dict[str, str] = {}
    for path, (_, options) in GRAMMAR.items():
        name, *inner = path.split(" ")
        if "--json" in options and [name, *inner][: len(typed)] == typed and len(inner) >= len(typed):
            found.setdefault([name, *inner][len(typed)], "" if typed else COMMANDS[name][1])
    return starting(list(found.items()), current)


def values(kind: str, current: str) -> list[tuple[str, str]] | None:
    """What a value of this kind may be."""
    if kind == "files":
        return None
    if kind in ("jobs", "nodes", "users"):
        return asked(kind, current)
    if "|" not in kind:
        return []
    head, comma, tail = current.rpartition(",")  # of several, the last
    return [(f"{head}{comma}{word}", "") for word in kind.split("|") if word.startswith(tail)]


def asked(kind: str, current: str) -> list[tuple[str, str]]:
    """Words from the daemon. Of `3,4` only what follows the last comma is completed."""
    from gpq.client import quick
    from gpq.errors import GpqError

    head, comma, tail = current.rpartition(",") if kind == "jobs" else ("", "", current)
    try:
        found = quick.ask("complete", {"kind": kind, "prefix": tail}, timeout=2.0)["words"]
    except (GpqError, KeyError):
        return []
    return [(f"{head}{comma}{word}", said) for word, said in found if word.isprintable()]


def starting(pairs: list[tuple[str, str]], prefix: str) -> list[tuple[str, str]]:
    return [pair for pair in pairs if pair[0].startswith(prefix)]
