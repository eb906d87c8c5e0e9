"""What a job seems to use of the user's shell but does not get: variables, shell functions, and the
GPUs of CUDA_VISIBLE_DEVICES. gpq names variables, never their values. It reads a limited part of
the code, and says nothing if that does not mention a service or a name."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping

from gpq import source
from gpq.options import standard_input
from gpq.outward import PROXIES, SECRET
from gpq.rpc.protocol import LIKE_SLURM
from gpq.rpc.requests import SpecMessage

SHOWN = 6
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
        *_variables(built, environ, text),
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
        origin = "--env" if VISIBLE in built.env else "your shell"
        yield (
            f"{VISIBLE} of {origin} has no effect, because gpq chooses the GPUs: --gpus says how"
            " many, --gpu-type of which type"
        )


def _slurm(built: SpecMessage, text: str) -> Iterator[str]:
    names = sorted({*SLURM.findall(text)} - built.env.keys())
    if names and LIKE_SLURM not in built.env:
        yield (
            f"the job reads {', '.join(names)}, which gpq sets only for scripts with #SBATCH lines:"
            f" add one, or pass --env {names[0]}=VALUE"
        )


def _variables(built: SpecMessage, environ: Mapping[str, str], text: str) -> Iterator[str]:
    names = _missing(built, environ, text)
    if not names or not _is_wanted():
        return
    more = [f"{len(names) - SHOWN} others"] if len(names) > SHOWN else []
    phrases = [*names[:SHOWN], *more]
    listing = " and ".join(filter(None, [", ".join(phrases[:-1]), phrases[-1]]))
    stay, them = "is not passed on, but the job seems to use it", "it"
    if len(names) > 1:
        stay, them = "are not passed on, but the job seems to use them", "them"
    yield (
        f"{listing} {stay}. Pass {them} on with"
        f" {' '.join(f'--env {name}' for name in names[:SHOWN])},"
        " or set note_env = false in config.toml to turn this note off"
    )


def _missing(built: SpecMessage, environ: Mapping[str, str], own_text: str) -> list[str]:
    """Names, sorted. Variables of a service that the code or its project uses. Other secrets that
    either names. Anything else that the named files themselves read. A proxy with a password in it,
    because libraries read proxies by themselves."""
    names = {
        name
        for name, value in environ.items()
        if value
        and name not in built.env
        and re.fullmatch(NAME, name)
        and not re.fullmatch(NOT_MEANT, name)
    }
    service_words = [
        (name, words) for name in names for pattern, words in SERVICES if re.match(pattern, name)
    ]
    secrets = {name for name in names if SECRET.search(name)}
    all_text = own_text
    if service_words or secrets:
        folders = [*map(os.path.dirname, _named_files(built)), built.cwd]
        all_text = "\n".join([own_text, *source.project_texts(folders)])
    used = {name for name, words in service_words if re.search(words, all_text, re.IGNORECASE)}
    used |= source.names_read(all_text, secrets) | source.names_read(own_text, names)
    used |= PROXIES & names
    return sorted(used - source.names_set(own_text, used))


def _is_wanted() -> bool:
    from gpq import config
    from gpq.errors import UsageError

    try:
        return config.load().note_env
    except UsageError:  # the daemon or `gpq config check` reports it
        return True


def _named_files(built: SpecMessage) -> list[str]:
    """Files among the words of the command, but no large ones of data."""
    paths = [os.path.join(built.cwd, word) for word in built.argv]
    return [
        path
        for path in filter(os.path.isfile, paths)
        if path.endswith(source.ENDINGS) or os.path.getsize(path) < source.MOST_READ
    ]


def _own_text(built: SpecMessage) -> str:
    """Of the words, the files among them, and what comes on stdin."""
    files = map(source.text_of, _named_files(built))
    return "\n".join([*files, *built.argv, built.setup, *standard_input.texts()])
