"""`gpq __complete SHELL WORD...` prints candidates for the last word. It asks a running daemon,
never starts one, and never complains.

It prints one candidate per line. For fish, a description follows after a tab. For zsh:COLUMNS, the
second field is how the candidate is shown. For bash:COLUMNS, only that is printed. Exit status 9
means file names. Exit status 10 means that a command follows `--`, and the shell completes it.
"""

import sys

FILES = 9
COMMAND = 10
PATIENCE = 1.0  # seconds for the arbiter of a team
EVERYWHERE = {"--help": ("Show the help of this command.", "")}
Pair = tuple[str, str]  # word, description
Options = dict[str, tuple[str, str]]  # name -> description, kind of its value


class Line:
    """The line to complete: the shell and the command."""

    __slots__ = ("path", "shell")

    def __init__(self, shell: str, path: str = "") -> None:
        self.shell, self.path = shell, path


def answer(argv: list[str]) -> int:
    name, *words = argv or ["bash"]
    shell, _, width = name.partition(":")
    words = words or [""]
    if shell == "bash":
        words = join_words(words)
    completions = candidates(words, shell)
    if isinstance(completions, int):
        return completions
    columns = int(width) if width.isdigit() else 0
    sys.stdout.write(SHELLS.get(shell, bash)(completions, columns))
    return 0


def join_words(words: list[str]) -> list[str]:
    """Join `--color = al` again, because bash splits words at = and :. The last word keeps only the
    part after the split."""
    whole: list[str] = []
    for word in words:
        if word == "=" and whole and whole[-1].startswith("--"):
            whole.append("")
        else:
            whole.append(word)
    return [*filter(None, whole[:-1]), whole[-1]]


def bash(pairs: list[Pair], columns: int) -> str:
    """The words. If bash gives its width, it shows several candidates and inserts none. They then
    come with descriptions, each wide enough for a row of its own."""
    if not columns or len(pairs) < 2 or not any(description for _, description in pairs):
        return "".join(f"{word}\n" for word, _ in pairs)
    longest = max(len(word) for word, _ in pairs)
    return "".join(f"{row[: columns - 2]:{columns // 2}}\n" for row in beside(pairs, longest, "  "))


def zsh(pairs: list[Pair], columns: int) -> str:
    """Word, tab, and how zsh shows it."""
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
    """(word, description) for the last of `words`, or FILES, or COMMAND. The words before it are
    complete."""
    from gpq.options.completion_data import COMMANDS, GRAMMAR

    if len(words) == 1:
        options = [("--help", "Show all commands."), ("--version", "")]
        return starting([*COMMANDS.items(), *options], words[0])
    path, *tail = words
    if path in GRAMMAR:
        return after_command(Line(shell, path), *GRAMMAR[path], tail)
    return in_group(path, tail, shell)


def in_group(group: str, words: list[str], shell: str) -> list[Pair] | int:
    """The candidates after the name of a group: a command in it, or what follows such a command."""
    from gpq.options.completion_data import GRAMMAR

    names = [path.partition(" ")[2] for path in GRAMMAR if path.startswith(f"{group} ")]
    if not names:
        return []
    default = f"{group} list" if "list" in names else ""  # the default command
    if len(words) == 1 and not (default and words[0].startswith("-")):
        inner = starting([*((name, "") for name in names), ("--help", "")], words[0])
        if not default:
            return inner
        arguments = after_command(Line(shell, default), *GRAMMAR[default], words)
        return inner if isinstance(arguments, int) else inner + arguments
    if default and words[0] not in names:
        return after_command(Line(shell, default), *GRAMMAR[default], words)
    path = f"{group} {words[0]}"
    if path not in GRAMMAR:
        return []
    return after_command(Line(shell, path), *GRAMMAR[path], words[1:])


def after_command(line: Line, kind: str, options: Options, words: list[str]) -> list[Pair] | int:
    """The candidates after a command: a value for the option before, an option, or an argument."""
    *typed_words, current = words
    reading = read(line, options, typed_words)
    if isinstance(reading, int):
        return reading
    arguments, value_kind, literal = reading
    if value_kind:
        return option_values(line, value_kind, current, arguments)
    if current.startswith("-") and not literal:
        return option_candidates(line, options, current, arguments)
    if kind == "commands":
        return documented_word(words)
    return values(line, kind, current, arguments)


def read(line: Line, options: Options, words: list[str]) -> tuple[list[str], str, bool] | int:
    """The arguments among the complete words, the kind of value that the last option needs, and
    whether `--` came before. Or FILES, or COMMAND."""
    arguments: list[str] = []
    value_kind, literal = "", False
    for word in words:
        if value_kind:
            value_kind = ""
        elif word == "--" and not literal:
            if line.path == "submit":
                return COMMAND
            literal = True
        elif literal or not word.startswith("-"):
            if line.path in ("submit", "check"):
                return FILES  # the words of the script
            arguments.append(word)
        elif "=" not in word:
            value_kind = options.get(word, ("", ""))[1]
    return arguments, value_kind, literal


def option_candidates(
    line: Line, options: Options, current: str, arguments: list[str]
) -> list[Pair] | int:
    """An option, or its value after `=`."""
    name, assigned, value = current.partition("=")
    if assigned and name in options:
        completions = option_values(line, options[name][1], value, arguments)
        if isinstance(completions, int):
            return completions
        return [(f"{name}={word}", description) for word, description in completions]
    offers = [
        (word, description)
        for word, (description, _) in {**options, **EVERYWHERE}.items()
        if word.startswith("--")
    ]
    return starting(offers, current)


def option_values(line: Line, kind: str, current: str, arguments: list[str]) -> list[Pair] | int:
    """Only for jobs, options and arguments count together."""
    return values(line, kind, current, arguments if kind == "jobs" else [])


def documented_word(words: list[str]) -> list[Pair]:
    """The next word of a command that prints JSON and so has a schema: `nodes`, then `list`."""
    from gpq.options.completion_data import COMMANDS, GRAMMAR

    *path_words, current = words
    depth = len(path_words)
    next_words: dict[str, str] = {}
    for path, (_, options) in GRAMMAR.items():
        names = path.split(" ")
        if "--json" in options and names[:depth] == path_words and len(names) > depth:
            next_words.setdefault(names[depth], "" if path_words else COMMANDS[names[0]])
    return starting(list(next_words.items()), current)


def values(line: Line, kind: str, current: str, arguments: list[str]) -> list[Pair] | int:
    """Possible values of this kind. `arguments`: the arguments so far."""
    if kind == "files":
        return FILES
    if kind in ("job", "node", "member", "member/job") and arguments:  # exactly one
        return []
    if kind in ("member", "member/job"):
        return team_words(kind, current)
    if kind in ("job", "node"):
        words = daemon_words(line, f"{kind}s", current, [])
        is_name = line.path == "why" and current and not current.isdigit()
        return words + team_words(kind, current) if is_name else words
    if kind in ("jobs", "nodes", "users"):
        return daemon_words(line, kind, current, arguments)
    if "|" not in kind:
        return []
    head, comma, tail = current.rpartition(",")  # of several values, the last
    return [(f"{head}{comma}{word}", "") for word in kind.split("|") if word.startswith(tail)]


def team_words(kind: str, current: str) -> list[Pair]:
    """Members, jobs that have GPUs such as `bob/42` ("member/job"), or all jobs, from the arbiter.
    Nothing if it does not answer."""
    from gpq.client import team
    from gpq.errors import GpqError

    try:
        look = team.look(PATIENCE)
    except GpqError:
        return []
    if kind == "member":
        return starting([(row.name, "") for row in look.members.rows], current)
    rows = [row for row in look.queue.rows if row.gpus or kind == "job"]
    jobs = [(f"{row.member}/{row.job}", f"{row.name} {row.state}".strip()) for row in rows]
    return starting(jobs, current)


def daemon_words(line: Line, kind: str, current: str, arguments: list[str]) -> list[Pair]:
    """Words from the daemon."""
    if kind != "jobs":
        names = plain_names(arguments)
        return [pair for pair in ask({"kind": kind, "prefix": current}) if pair[0] not in names]
    head, comma, tail = current.rpartition(",")  # of `3,4`, only the part after the comma
    names = plain_names([*arguments, head])
    pairs = ask({"kind": kind, "prefix": tail, "command": line.path, "given": names})
    pairs = [pair for pair in pairs if pair[0] not in names]
    if line.shell == "bash" and not tail.strip("0123456789"):
        ids = [pair for pair in pairs if pair[0].isdigit()]
        pairs = ids or pairs  # names, if the word begins with a letter
    return [(f"{head}{comma}{word}", description) for word, description in pairs]


def plain_names(words: list[str]) -> list[str]:
    """The names so far, without the part after a colon."""
    return [part.partition(":")[0] for word in words for part in word.split(",") if part]


def ask(request: dict[str, object]) -> list[Pair]:
    """What the daemon knows, if it can be typed. Nothing if no daemon answers."""
    from gpq.client import quick
    from gpq.errors import GpqError

    try:
        pairs = quick.ask("complete", request, timeout=2.0)["words"]
    except (GpqError, KeyError):
        return []
    return [(word, description) for word, description in pairs if word.isprintable()]


def starting(pairs: list[Pair], prefix: str) -> list[Pair]:
    return [pair for pair in pairs if pair[0].startswith(prefix)]
