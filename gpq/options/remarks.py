"""What gpq remarks about a submission: a command or a module that is not here, what `gpq check`
found of the script, and what the job seems to use of the user's shell but does not get: variables,
shell functions, and the GPUs of CUDA_VISIBLE_DEVICES.

gpq names variables, never their values. It reads a limited part of the code, and says nothing if
that does not mention a service or a name."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from collections.abc import Mapping

from gpq import source
from gpq.errors import UsageError
from gpq.options import environment, job_spec, standard_input
from gpq.options.job_spec import SubmitTexts
from gpq.outward import PROXIES, SECRET
from gpq.rpc.protocol import LIKE_SLURM
from gpq.rpc.requests import ArrayMessage, ProofMessage, SpecMessage

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


def of(
    texts: SubmitTexts, built: SpecMessage, array: ArrayMessage | None
) -> tuple[ProofMessage | None, list[str]]:
    """What `gpq check` found of the script, and all remarks."""
    remarks, arguments = missing(built), texts.words[1:]
    if array is not None:
        from gpq.options import sweeps

        remarks += sweeps.unused_lines(array, built) + sweeps.plain_indices(texts.array, built)
        arguments = sweeps.first_words(arguments, array)
    proof = None
    if built.level == "script":
        proof, proof_remarks = _proof(texts, built, arguments)
        remarks += proof_remarks
    return proof, remarks + left_behind(built, os.environ)


def missing(built: SpecMessage) -> list[str]:
    """A remark about a command that this machine does not have, although servers may have it. Also
    one about gpq's own Python, if it would run a script and lacks a module."""
    if built.level == "script":
        if not built.modules or built.python_asked or built.python != environment.own():
            return []
        from importlib.util import find_spec

        lacking = [name for name in built.modules if find_spec(name) is None]
        if not lacking:
            return []
        return [
            f"gpq's own Python ({built.python}) has no {', '.join(lacking)}: activate the"
            " environment that has it, or use --python python3"
        ]
    word = built.argv[0]
    folders = [""] if "/" in word else built.env.get("PATH", os.defpath).split(os.pathsep)
    places = [os.path.join(built.cwd, folder, word) for folder in folders]
    exists = any(os.access(path, os.X_OK) and os.path.isfile(path) for path in places)
    return [] if built.setup or "{" in word or exists else [_missing_command(word, built)]


def _missing_command(word: str, built: SpecMessage) -> str:
    is_file = os.path.isfile(os.path.join(built.cwd, word))
    if "/" in word and is_file:
        return (
            f"`{word[:80]}` is not executable: run `chmod +x {word}`, or leave out `--`:"
            f" gpq submit {word}"
        )
    problem = (
        f"this machine has no command `{word[:80]}`, and the job will fail on a server without it"
    )
    if not word.startswith(("/", "./", "../")) and is_file:
        return f"{problem}: did you mean `./{word}`?"
    if " " in word and len(built.argv) == 1:
        return f"{problem}: remove the quotes if this is a command with arguments"
    return problem


def _proof(
    texts: SubmitTexts, built: SpecMessage, arguments: list[str]
) -> tuple[ProofMessage | None, list[str]]:
    """The findings of `gpq check` about a script, which travel with the job, and remarks on them,
    or that there are none. `arguments`: those of an array's first job."""
    from gpq import verdicts  # only for scripts

    line = shlex.join([texts.words[0], *arguments])
    path = job_spec.script_path(texts)
    verdict = verdicts.saved_verdict(path, arguments)
    may_be_resized = built.max_gpus != built.min_gpus and not built.rigid
    if verdict is None and not may_be_resized:
        return None, []
    script = job_spec.script_of(texts)
    remarks = source.hints(script)
    if verdict is None:
        if script.uses_library():
            remarks.append(
                "gpq has not checked this script yet:"
                f" `gpq check {line}` tests whether it trains the same on any number of GPUs"
            )
        else:
            remarks += [
                f"line {number} of {texts.words[0]}: with `import gpq_agent.train as gpq` and"
                f" `{call}` instead of `{name}(...)` gpq can resize the job"
                for number, name, call in script.adapter_calls()
            ]
        return None, remarks
    changed = verdicts.changed_file(verdict)
    if changed:
        name = os.path.relpath(changed, os.path.dirname(os.path.realpath(path)))
        remark = f"{name} has changed since the last check of this script"
        return None, [*remarks, f"{remark}: run `gpq check {line}` again"]
    result = verdicts.proof(verdict)
    if result is None or not result.lost:
        return result, remarks
    words = f"gpq might change what this script trains ({result.message}), so it does not use"
    return result, [*remarks, f"{words} {', '.join(result.lost)}: see `gpq check --last {line}`"]


def left_behind(built: SpecMessage, environ: Mapping[str, str]) -> list[str]:
    """What the job seems to use of the user's shell, and does not get."""
    paths = [os.path.join(built.cwd, word) for word in built.argv]
    named_files = [  # but no large ones of data
        path
        for path in filter(os.path.isfile, paths)
        if path.endswith(source.ENDINGS) or os.path.getsize(path) < source.MOST_READ
    ]
    contents = map(source.text_of, named_files)
    text = "\n".join([*contents, *built.argv, built.setup, *standard_input.texts()])
    remarks = _missing_functions(built, environ, text)
    if SETS_VISIBLE.search(text):
        remarks.append(
            f"the job sets {VISIBLE} itself, so it may use GPUs of other jobs: leave that out, and"
            " it sees its own as 0, 1 and so on"
        )
    elif VISIBLE in built.env or (VISIBLE in environ and "GPQ_JOB_ID" not in environ):
        origin = "--env" if VISIBLE in built.env else "your shell"
        remarks.append(
            f"{VISIBLE} of {origin} has no effect, because gpq chooses the GPUs: --gpus says how"
            " many, --gpu-type of which type"
        )
    slurm = sorted({*SLURM.findall(text)} - built.env.keys())
    if slurm and LIKE_SLURM not in built.env:
        remarks.append(
            f"the job reads {', '.join(slurm)}, which gpq sets only for scripts with #SBATCH lines:"
            f" add one, or pass --env {slurm[0]}=VALUE"
        )
    return remarks + _missing_variables(built, environ, text, named_files)


def _missing_functions(built: SpecMessage, environ: Mapping[str, str], text: str) -> list[str]:
    """Functions of the user's shell that a job calls without having them."""
    if "BASH_ENV" in built.env or DEFINES.search(text):
        return []
    conda = environ.get("CONDA_EXE", "~/miniconda3/bin/conda").rpartition("/bin/")[0]
    cures = {
        "module": "run `export -f module` before you submit, or put `source"
        f" {environ.get('MODULESHOME', '/usr/share/modules')}/init/bash` above that line",
        "conda": "activate it before you submit instead, or put `source"
        f" {conda}/etc/profile.d/conda.sh` above that line",
    }
    remarks = []
    for name, call in FUNCTIONS.items():
        called = re.search(rf"(?m)(?:^|[;&|]|\bthen\b|\bdo\b)\s*{call}", text)
        if called and f"BASH_FUNC_{name}%%" not in built.env:
            remarks.append(f"the job has no function `{name}` of your shell: {cures[name]}")
    return remarks


def _missing_variables(
    built: SpecMessage, environ: Mapping[str, str], own_text: str, named_files: list[str]
) -> list[str]:
    """Variables of a service that the code or its project uses. Other secrets that either names.
    Anything else that the named files themselves read. A proxy with a password in it, because
    libraries read proxies by themselves."""
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
        folders = [*map(os.path.dirname, named_files), built.cwd]
        all_text = "\n".join([own_text, *source.project_texts(folders)])
    used = {name for name, words in service_words if re.search(words, all_text, re.IGNORECASE)}
    used |= source.names_read(all_text, secrets) | source.names_read(own_text, names)
    used |= PROXIES & names
    names_left = sorted(used - source.names_set(own_text, used))
    if not names_left:
        return []
    with contextlib.suppress(UsageError):  # the daemon or `gpq config check` reports it
        from gpq import config

        if not config.load().note_env:
            return []
    more = [f"{len(names_left) - SHOWN} others"] if len(names_left) > SHOWN else []
    phrases = [*names_left[:SHOWN], *more]
    listing = " and ".join(filter(None, [", ".join(phrases[:-1]), phrases[-1]]))
    stay, them = "is not passed on, but the job seems to use it", "it"
    if len(names_left) > 1:
        stay, them = "are not passed on, but the job seems to use them", "them"
    return [
        f"{listing} {stay}. Pass {them} on with"
        f" {' '.join(f'--env {name}' for name in names_left[:SHOWN])},"
        " or set note_env = false in config.toml to turn this note off"
    ]
