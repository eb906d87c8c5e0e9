"""stdin of `gpq submit`: the job reads it, or one line says why not, and no program around it loses its own."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys

import pytest

from gpq.options import standard_input
from tests.cli.conftest import Gpq
from tests.cli.served import Made

PATIENT = f"PATH={os.path.dirname(sys.executable)}:$PATH\n"
SCRIPT = '#!/bin/bash -u\n#SBATCH --job-name=mine\n#SBATCH --gpus=1\ncat\necho "$SLURM_JOB_NAME $#"\n'


def bash(gpq: Gpq, text: str, **options: object) -> subprocess.CompletedProcess[str]:
    """`text` in a shell of the user, in their home."""
    words = ["bash", "-c", PATIENT + text]
    return subprocess.run(
        words, cwd=gpq.home, env=gpq.environment, text=True, capture_output=True, timeout=120, **options
    )  # type: ignore[call-overload, no-any-return]


WAYS = {
    "a shell": ("gpq submit --wait -- bash <<'X'\necho $((6 * 7)) of bash\nX", "42 of bash"),
    "a shell with arguments": ("echo 'echo $1 of bash' | gpq submit --wait -- /bin/sh -s 42", "42 of bash"),
    "a program": ("echo 'print(6 * 7)' | gpq submit --wait -- python3 -u -", "42"),
    "a file": ("gpq submit --wait -- wc -c < data", "5"),
    "a named stream": ("cat data | gpq submit --wait -- wc -c /dev/stdin", "5 /dev/stdin"),
    "a pipe on request": ("cat data | gpq submit --wait --stdin - -- wc -c", "5"),
    "a file on request": ("gpq submit --wait --stdin data -- wc -c", "5"),
    "a line of a script": ("gpq submit --wait reads.sh", "5"),
    "a script": (f"gpq submit --wait <<'X'\n{SCRIPT}X", "mine 0"),
    "a script with options": (f"gpq submit --wait --time 1m <<'X'\n{SCRIPT}X", "mine 0"),
    "a script with arguments": (f"gpq submit --wait - 1 2 <<'X'\n{SCRIPT}X", "mine 2"),
    "a script by name": ("gpq submit --wait /dev/stdin 1 < script", "mine 1"),
    "a script of a named pipe": ("mkfifo named && { cat script > named & } && gpq submit --wait named 1", "mine 1"),
    "a script of a substitution": ("gpq submit --wait <(cat script) 1 2", "mine 2"),
    "nothing": ("gpq submit --wait -- wc -c < /dev/null", "0"),
    "a closed stdin": ("gpq submit --wait -- wc -c <&-", "0"),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_job_reads_what_its_submission_has_on_stdin(queue: Gpq, way: str) -> None:
    (queue.home / "data").write_text("data\n")
    (queue.home / "script").write_text(SCRIPT)
    (queue.home / "reads.sh").write_text("#!/bin/sh\n#SBATCH --input=data\nwc -c\n")
    text, output = WAYS[way]
    done = bash(queue, f"{{ {text}\n}} > submitted && gpq logs @")
    assert (done.returncode, done.stdout.strip()) == (0, output), done


@pytest.mark.parametrize("text", ["done < list", "done < <(cat list)"], ids=["file", "pipe"])
def test_a_loop_over_lines_keeps_its_lines_and_hears_that_the_jobs_do_not_get_them(queue: Gpq, text: str) -> None:
    (queue.home / "list").write_text("a\nb\nc\n")
    done = bash(queue, f'while read -r line; do gpq submit --wait -- sh -c "echo $line; cat" && gpq logs @; {text}')
    assert "stdin " not in bash(queue, "gpq show @").stdout
    lines = [line for line in done.stdout.splitlines() if not line.startswith("job ")]
    assert lines == ["a", "b", "c"]
    assert done.stderr.count("the job does not get the data on stdin") == 2  # nothing is left after the last line


def test_each_attempt_reads_all_of_it(queue: Gpq) -> None:
    text = "gpq submit --wait --retries 1 -- sh -c 'cat; [ $GPQ_ATTEMPT = 2 ]' < data && gpq logs @"
    (queue.home / "data").write_text("once\n")
    done = bash(queue, text)
    assert done.stdout.count("once") == 2, done
    assert "stdin          a copy, sha256 " in bash(queue, "gpq show @").stdout


@pytest.mark.parametrize("words", ["-- sleep 0", "-- ./tool -", "train.py"])
def test_a_pipe_that_stays_open_keeps_nobody_waiting(gpq: Gpq, made: Made, words: str) -> None:
    (gpq.home / "train.py").touch()
    reading, writing = os.pipe()
    try:
        done = bash(gpq, f"gpq submit {words}", stdin=reading)
    finally:
        os.close(writing)
        os.close(reading)
    assert done.stdout.startswith("job 5 submitted")


@pytest.mark.parametrize("kind", ["pipe", "socket"])
def test_a_submission_that_asks_for_an_open_pipe_ends(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    first, second = os.pipe() if kind == "pipe" else [end.detach() for end in socket.socketpair()]
    monkeypatch.setattr(standard_input, "PATIENCE", 0.01)
    with pytest.raises(standard_input.UsageError, match="stayed open for 0 s without data"):
        standard_input.contents(f"/dev/fd/{first}") if kind == "pipe" else standard_input._read(first, "stdin")
    os.close(first)
    os.close(second)


REFUSED = {
    "echo hello | gpq submit": "nothing to run",
    "echo hello | gpq submit -": "is no shell script",
    "printf '#!/usr/bin/env python3\\nprint(1)\\n' | gpq submit -": "is no shell script",
    "printf '#!/bin/sh\\r\\ntrue\\r\\n' | gpq submit": "gpq: stdin has DOS line endings",
    "printf '\\xef\\xbb\\xbf#!/bin/sh\\ntrue\\n' | gpq submit": "gpq: stdin begins with a byte order mark",
    "gpq submit - < /dev/null": "there is no file or pipe on stdin",
    "gpq submit < /dev/null": "nothing to run",
    "gpq submit --stdin missing -- cat": "cannot read .*missing: No such file or directory",
    "gpq submit -- cat <(echo 1)": "/dev/fd/63 exists only in your shell",
    "gpq submit -- cat < large": "stdin has more than 64 MiB",
    "gpq submit --stdin large - <<'X'\n#!/bin/sh\nX": "a script on stdin cannot have --stdin",
    "gpq submit --launcher torchrun --stdin train.py train.py": "replicas would share one stdin",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_cannot_be_passed_on_is_refused_in_a_line(gpq: Gpq, made: Made, text: str) -> None:
    (gpq.home / "train.py").touch()
    with open(gpq.home / "large", "wb") as stream:
        stream.truncate(standard_input.MOST_BYTES + 1)
    done = bash(gpq, text)
    assert done.returncode == 2, done
    problem, hint = done.stderr.splitlines()
    assert hint.startswith("hint: ")
    assert re.search(REFUSED[text], problem)
    assert not made.asked
