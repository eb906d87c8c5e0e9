"""`gpq submit --check`, and `check = "first"` in config.toml: no script is queued without a verdict
of `gpq check`."""

from __future__ import annotations

import msgspec

from gpq.check import keeping
from gpq.check.proving import CheckRequest
from gpq.check.verdict import SAME
from gpq.cli.check_run import DEFAULT_STEPS, DEFAULT_TIMEOUT, run_check
from gpq.errors import GpqError
from gpq.options import job_spec, proofs, sweeps, values
from gpq.options.submit_texts import SubmitTexts
from gpq.views.verdict import JUDGEMENTS


def check_first(texts: SubmitTexts, *, quiet: bool) -> list[str]:
    """Check the script, unless a verdict of this version of it is saved. Returns a remark on a
    verdict that costs the job nothing: submitting says the others.

    Of an array, the first job is checked. The check runs here, in the job's environment but without
    its --setup. Raises GpqError if the script fails on its own.
    """
    built = job_spec.build(msgspec.structs.replace(texts, snapshot=False, stdin=""))
    array = sweeps.array_of(texts.array, texts.sweep, texts.sweep_file)
    script, arguments = built.argv[0], proofs.first_arguments(texts, array)
    if keeping.current(script, arguments) is not None:
        return []
    request = CheckRequest(
        script,
        tuple(arguments),
        built.python,
        built.env,
        built.cwd,
        DEFAULT_STEPS,
        values.seconds(DEFAULT_TIMEOUT, "--timeout"),
    )
    try:
        result = run_check(request, quiet=quiet)
    except GpqError as error:
        error.hint = f"{error.hint} (--no-check submits it without a check)"
        raise
    if result.verdict != SAME:
        return []
    return [f"gpq check: {JUDGEMENTS[SAME]} ({result.seconds:.0f} s)"]
