"""The findings of `gpq check` about the submitted script. They travel with the job, and gpq says
them in one line."""

from __future__ import annotations

import os
import shlex

from gpq import verdicts
from gpq.options import job_spec
from gpq.options.job_spec import SubmitTexts
from gpq.rpc.requests import ArrayMessage, ProofMessage, SpecMessage, fill_placeholders
from gpq.source import Script, hints, text_of


def of(
    texts: SubmitTexts, built: SpecMessage, array: ArrayMessage | None
) -> tuple[ProofMessage | None, list[str]]:
    """The proof of a script, and a remark on it, or that there is none. For an array, those of its
    first job."""
    if built.level != "script" or not texts.words:
        return None, []
    arguments = first_arguments(texts, array)
    line = shlex.join([texts.words[0], *arguments])
    verdict = verdicts.saved_verdict(_path(texts), arguments)
    may_be_resized = built.max_gpus != built.min_gpus and not built.rigid
    if verdict is None and not may_be_resized:
        return None, []
    script = script_of(texts)
    remarks = hints(script)
    if verdict is None:
        if script.uses_library():
            remarks.append(
                "gpq has not checked this script yet:"
                f" `gpq check {line}` tests whether it trains the same on any number of GPUs"
            )
        return None, remarks
    changed = verdicts.changed_file(verdict)
    if changed:
        name = os.path.relpath(changed, os.path.dirname(os.path.realpath(_path(texts))))
        remark = f"{name} has changed since the last check of this script"
        return None, [*remarks, f"{remark}: run `gpq check {line}` again"]
    result = verdicts.proof(verdict)
    if result is None or not result.lost:
        return result, remarks
    words = f"gpq might change what this script trains ({result.message}), so it does not use"
    return result, [*remarks, f"{words} {', '.join(result.lost)}: see `gpq check --last {line}`"]


def script_of(texts: SubmitTexts) -> Script:
    """The submitted script, without text if it cannot be read."""
    return Script(text_of(_path(texts)))


def _path(texts: SubmitTexts) -> str:
    return os.path.join(job_spec.directory(texts.cwd), os.path.expanduser(texts.words[0]))


def first_arguments(texts: SubmitTexts, array: ArrayMessage | None) -> list[str]:
    """The arguments of the script, for an array those of its first job."""
    values = {}
    if array is not None:
        values = {"index": str(array.indices[0]), **(array.params or [{}])[0]}
    return [fill_placeholders(word, values) for word in texts.words[1:]]
