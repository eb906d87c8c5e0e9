"""What a job seems to use of the user's shell but does not get: variables, shell functions, and the
GPUs of CUDA_VISIBLE_DEVICES. gpq names variables, never their values. It reads a limited part of
the code, and says nothing if that does not mention a service or a name."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence

from gpq.options.parsing import standard_input
from gpq.outward import PROXIES, SECRET
from gpq.rpc.protocol import LIKE_SLURM
from gpq.rpc.requests import SpecMessage

# limits for the files of a project: number, bytes, folders below its own
MOST_FILES, MOST_BYTES, DEEPEST = 200, 2 << 20, 2
SHOWN = 6
READ = (".py", ".sh", ".bash", ".toml", ".txt", ".cfg", ".yaml", ".yml", ".ipynb")
# Variables of each service, and the words in code that show its use. Libraries that report to it by
# themselves count.
SERVICES = (
    (r"WANDB_", r"\bwandb\b|\btransformers\b|\blightning\b|\baccelerate\b|\btrl\b"),
    (
        r"HF_TOKEN|HUGGING_?FACE_",
        r"hugging_?face|\btransformers\b|\bdatasets\b|\bdiffusers\b|\bhf_hub",
    ),
    (r"COMET_", r"\bcomet_ml\b|\bcomet\b"),
    (r"NEPTUNE_", r"\bneptune\b"),
    (r"(?:MLFLOW|DATABRICKS)_", r"\bmlflow\b|\bdatabricks\b"),
    (r"CLEARML_", r"\bclearml\b"),
    (r"AWS_", r"\bboto3\b|\bs3fs\b|\bs3://|\bsmart_open\b|\baws\b|\bwebdataset\b"),
    (
        r"GOOGLE_(?:APPLICATION_CREDENTIALS|CLOUD_)",
        r"\bgcsfs\b|\bgs://|google\.cloud|\bgsutil\b|\bgcloud\b",
    ),
    (r"AZURE_", r"\badlfs\b|\babfss?://|\bazure\b"),
    (r"KAGGLE_", r"\bkaggle(?:hub)?\b"),
)
# Variables that gpq, the launcher or the server sets, and those of the shell itself.
NOT_MEANT = (
    r"_|HOME|USER|LOGNAME|SHELL|PWD|OLDPWD|SHLVL|HOSTNAME|TERM.*|COLORTERM|COLUMNS|LINES|DISPLAY"
    r"|WAYLAND.*|EDITOR|VISUAL|"
    r"PAGER|LESS.*|LS_COLORS|MAIL|MANPATH|INFOPATH|PS\d|IFS|XDG_.*|SSH_.*|DBUS_.*|GPQ_.*"
    r"|SLURM_.*|CUDA_VISIBLE_DEVICES|"
    r"CUDA_DEVICE_ORDER|RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT|(?:LOCAL|GROUP|ROLE)_.*"
    r"|TORCHELASTIC_.*|BASH_.*|ZSH.*"
)
NAME = r"[A-Za-z_][A-Za-z0-9_]+"
VISIBLE = "CUDA_VISIBLE_DEVICES"
# code that sets or removes it, except from its own value
SETS_VISIBLE = re.compile(
    rf"(?m)^[^#\n]*(?:\b{VISIBLE}(?:[\"']?\]?\s*=(?!=)|[\"']\s*:)(?!\S*{VISIBLE})"
    rf"|(?:\b(?:unset|setenv)\s+|\s-u\s*|\bdel\s.*|\b(?:pop|putenv)\(.){VISIBLE}\b)"
)
# a shell reads it, and has nothing to use instead
SLURM = re.compile(r"(?m)^(?!\s*#).*?\$\{?(SLURMD?_[A-Z0-9_]+)\b(?!:?[-+=])")
FUNCTIONS = {"module": r"(?:module|ml)\s+\w", "conda": r"(?:conda|mamba|micromamba)\s+activate\b"}
# code that may define such a function: a file of a shell, a hook, a login shell
DEFINES = re.compile(
    r"(?m)(?:\bsource|(?<!\S)\.)\s+\S*(?:conda|mamba|profile|rc\b|modul|lmod|init)|\bhook\b"
    r"|^(?:#!.*sh )?-\w*[il]|\b(?:module|conda)\s*\(\)"
)


def notes(built: SpecMessage, environ: Mapping[str, str]) -> list[str]:
    """Lines."""
    text = _own_text(built)
    return [
        *_missing_functions(built, environ, text),
        *_gpus(built, environ, text),
        *_slurm(built, text),
        *_variables(built, environ),
    ]


def _missing_functions(built: SpecMessage, environ: Mapping[str, str], text: str) -> Iterator[str]:
    """Functions of the user's shell that a job calls without having them."""
    if "BASH_ENV" in built.env or DEFINES.search(text):
        return
    conda = environ.get("CONDA_EXE", "~/miniconda3/bin/conda").rpartition("/bin/")[0]
    cures = {
        "module": "run `export -f module` before you submit, or put `source"
        f" {environ.get('MODULESHOME', '/usr/share/modules')}/init/bash` above that line",
        "conda": "activate it before you submit instead, or put `source"
        f" {conda}/etc/profile.d/conda.sh` above that line",
    }
    for name, call in FUNCTIONS.items():
        called = re.search(rf"(?m)(?:^|[;&|]|\bthen\b|\bdo\b)\s*{call}", text)
        if called and f"BASH_FUNC_{name}%%" not in built.env:
            yield f"the job has no function `{name}` of your shell: {cures[name]}"


def _gpus(built: SpecMessage, environ: Mapping[str, str], text: str) -> Iterator[str]:
    if SETS_VISIBLE.search(text):
        yield (
            f"the job sets {VISIBLE} itself, so it may use GPUs of other jobs: leave that out, and"
            " it sees its own as 0, 1 and so on"
        )
    elif VISIBLE in built.env or (VISIBLE in environ and "GPQ_JOB_ID" not in environ):
        source = "--env" if VISIBLE in built.env else "your shell"
        yield (
            f"{VISIBLE} of {source} has no effect, because gpq chooses the GPUs: --gpus says how"
            " many, --gpu-type of which type"
        )


def _slurm(built: SpecMessage, text: str) -> Iterator[str]:
    names = sorted({*SLURM.findall(text)} - built.env.keys())
    if names and LIKE_SLURM not in built.env:
        yield (
            f"the job reads {', '.join(names)}, which gpq sets only for scripts with #SBATCH lines:"
            f" add one, or pass --env {names[0]}=VALUE"
        )


def _variables(built: SpecMessage, environ: Mapping[str, str]) -> list[str]:
    names = found(built, environ)
    if not names or not _wanted():
        return []
    more = [f"{len(names) - SHOWN} others"] if len(names) > SHOWN else []
    phrases = [*names[:SHOWN], *more]
    enumeration = (
        phrases[0] if len(phrases) == 1 else f"{', '.join(phrases[:-1])} and {phrases[-1]}"
    )
    stay = (
        "is not passed on, but the job seems to use it"
        if len(names) == 1
        else "are not passed on, but the job seems to use them"
    )
    send = " ".join(f"--env {name}" for name in names[:SHOWN])
    return [
        f"{enumeration} {stay}. Pass {'it' if len(names) == 1 else 'them'} on with {send},"
        " or set note_env = false in config.toml to turn this note off"
    ]


def found(built: SpecMessage, environ: Mapping[str, str]) -> list[str]:
    """Names, sorted. Variables of a service that the code or its project uses. Other secrets that
    either names. Anything else that the named files themselves read. A proxy with a password in it,
    because libraries read proxies by themselves."""
    candidates = _candidates(built, environ)
    if not candidates:
        return []
    paths, own_text = list(_named(built)), _own_text(built)
    any_service = re.compile("|".join(names for names, _ in SERVICES))
    service_names = [name for name in candidates if any_service.match(name)]
    of_service = _with_their_words(service_names)
    secrets = [name for name in candidates if SECRET.search(name)]
    project_text = "\n".join(_project(built, paths)) if of_service or secrets else ""
    all_text = f"{own_text}\n{project_text}"
    used_names = {name for name, words in of_service if re.search(words, all_text, re.IGNORECASE)}
    used_names |= (
        _read_in(all_text, secrets)
        | _read_in(own_text, candidates)
        | PROXIES.intersection(candidates)
    )
    return sorted(used_names - _set_in(own_text, used_names))


def _own_text(built: SpecMessage) -> str:
    """Of the words, the files among them, and what comes on stdin."""
    words = [*built.argv, built.setup]
    return "\n".join([*map(_text, _named(built)), *words, *standard_input.texts()])


def _with_their_words(names: Sequence[str]) -> list[tuple[str, str]]:
    """Each with the pattern of the words that show that code uses its service."""
    return [
        (name, words) for name in names for pattern, words in SERVICES if re.match(pattern, name)
    ]


def _candidates(built: SpecMessage, environ: Mapping[str, str]) -> list[str]:
    """Variables that are set here, are not passed on, and do not belong to the shell or the
    machine."""
    return [
        name
        for name, value in environ.items()
        if value
        and name not in built.env
        and re.fullmatch(NAME, name)
        and not re.fullmatch(NOT_MEANT, name)
    ]


def _wanted() -> bool:
    from gpq import config
    from gpq.errors import UsageError

    try:
        return config.load().note_env
    except UsageError:  # the daemon or `gpq config check` reports it
        return True


def _read_in(text: str, names: Sequence[str]) -> set[str]:
    """Names in quotes, or after a `$`."""
    if not names:
        return set()
    return set(re.findall(rf"(?:[\"']|\$\{{?)({'|'.join(map(re.escape, names))})\b", text))


def _set_in(text: str, names: set[str]) -> set[str]:
    """Names to which the code assigns a value."""
    return {
        name
        for name in names
        if re.search(rf"(?m)(?:^|[\s;]){name}=|[\"']{name}[\"']\]\s*=(?!=)", text)
    }


def _named(built: SpecMessage) -> Iterator[str]:
    """Files among the words of the command."""
    for word in built.argv:
        path = os.path.join(built.cwd, word)
        if (
            "\0" not in path
            and os.path.isfile(path)
            and (word.endswith(READ) or os.path.getsize(path) < MOST_BYTES)
        ):
            yield path


def _project(built: SpecMessage, paths: Sequence[str]) -> Iterator[str]:
    """Text of the folders of these files and of the working directory, but of no home directory or
    root."""
    excluded_folders = {os.path.expanduser("~"), "/", *os.environ.get("PATH", "").split(os.pathsep)}
    folders = dict.fromkeys([*(os.path.dirname(path) for path in paths), built.cwd])
    files, size = 0, 0
    for folder in folders:
        if os.path.realpath(folder) in excluded_folders or folder in excluded_folders:
            continue
        for path in _files(folder):
            files, size = files + 1, size + os.path.getsize(path)
            if files > MOST_FILES or size > MOST_BYTES:
                return
            yield _text(path)


def _files(folder: str) -> Iterator[str]:
    depth = folder.rstrip(os.sep).count(os.sep)
    for path, below, names in os.walk(folder):
        if "pyvenv.cfg" in names:
            below[:] = []
            continue
        deep = path.count(os.sep) - depth >= DEEPEST
        below[:] = (
            []
            if deep
            else sorted(name for name in below if not name.startswith((".", "__", "node_modules")))
        )
        for name in sorted(names):
            full = os.path.join(path, name)
            if name.endswith(READ) and os.path.isfile(full) and os.path.getsize(full) < MOST_BYTES:
                yield full


def _text(path: str) -> str:
    try:
        with open(path, "rb") as stream:
            head = stream.read(MOST_BYTES)
    except OSError:
        return ""
    return "" if b"\0" in head[:4096] else head.decode("utf-8", "replace")
