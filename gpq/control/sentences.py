"""What `gpq why` says: a sentence for the code of each reason, headline and remedy.

A sentence names its facts as `str.format` does. After the colon comes how to print the fact: one of
`FORMATS`, or `one|many`, the word for one and the word for several.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from gpq.core.explain.obstacles import JobReasons, Reason
from gpq.core.explain.pending import NEVER, SOON, Window
from gpq.core.explain.running_job import Change
from gpq.core.feasibility.device_status import gpus
from gpq.core.feasibility.leases import span
from gpq.core.model.jobs import Job

_MORE_GPUS = "{gpus} GPUs would change its goodput by {ratio:percent}"
_FREE = "{unused} {unused:is|are} free"
_GIVE_UP = "`gpq cancel {job}` gives the job up"
_FLOOR = "user {user} has {gpus} of the {floor:gpus} of their floor"
_RESTORED = "the database was restored from a copy"
_NEXT_ATTEMPT = "gpq waits {wait:.0f} s before the next attempt"
# codes whose line the core has written
WRITTEN = (
    "bringing", "stuck-process", "held-by-gpq", "unmet-dependency", "server-silent",
    "gate-unmet", "gate-after", "gate-begin", "gate-array", "orphan", "server-drained",
    "gpus-reserved", "environment", "environment-unfit", "environment-fix", "gpu-out-of-use",
    "fixed-size", "fixed-batch", "habit-remedy",
)  # fmt: skip
# Codes are stable. Removing one, or giving it another meaning, raises the schema number.
SENTENCES = {
    **dict.fromkeys(WRITTEN, "{line}"),
    # What it is about to do
    "cancelling": "being cancelled",
    "ending-processes": "it was cancelled, and gpq is ending its processes",
    "starting": "starting",
    "starting-processes": "gpq is starting its processes on {placement}",
    "starts-once-brought": "it starts on {placement} when the files are there",
    "stopping": "stopping ({stop})",
    "asked-to-end": (
        "gpq asked it to stop {since:span} ago ({stop}). It has {grace:.0f} s from then to end"
    ),
    "asked-to-checkpoint": (
        "gpq asked it to stop {since:span} ago ({stop}). It has {grace:.0f} s from then to save a"
        " checkpoint"
    ),
    "stuck": "stuck: {line}",
    "stuck-gpus": (
        "it keeps {placement} until the kernel releases its processes. Everything else on"
        " {servers:list} runs as usual"
    ),
    "reboot": "if it never ends, reboot {servers:list} after the other jobs there have ended",
    # Held
    "held-by-user": "held by its user",
    "requeue-chain": "`gpq requeue` of the job that is named there lets the chain go on",
    "release": "`gpq release {job}` queues it again",
    "requeue-other": "`gpq requeue {job}` runs job {job} again, and this one waits for its end",
    # Servers that do not answer
    "server-connecting": (
        "gpq is connecting to server {server} for the first time since the daemon started"
    ),
    "server-unreachable": "server {server} does not answer{cause:cause}",
    "server-not-up": "server {server} is {state}{cause:cause}",
    "server-unconfigured": "server {server} is no longer in the configuration",
    "may-run-on": (
        "gpq cannot tell whether the job still runs or has ended, so the job keeps its GPUs"
    ),
    "cancel-waits": (
        "the order to cancel it waits until {servers:list} {servers:answers|answer} again"
    ),
    "stop-waits": (
        "the order to stop it ({stop}) waits until {servers:list} {servers:answers|answer} again"
    ),
    "requeue-on-lost": (
        "--requeue-on-lost: the job ends itself {lease:span} after the last contact. gpq queues it"
        " again in {wait:span} at the earliest"
    ),
    "no-requeue-on-lost": (
        "without --requeue-on-lost gpq does not start it again, however long this lasts"
    ),
    "give-up-silent": (
        "if {servers:list} will not come back, remove {servers:it|them} from config.toml. Then"
        f" {_GIVE_UP}"
    ),
    "give-up-unconfigured": (
        f"{_GIVE_UP}. If you put the server back into config.toml, gpq hears of the job again"
    ),
    "servers-connecting": "connecting to servers",
    "servers-silent": "servers do not answer",
    "may-fit-when-back": "it may fit when {servers:list} {servers:answers|answer} again",
    "no-server-answers": "no server answers",
    "no-server-configured": "no server is configured",
    "see-nodes": "`gpq nodes` shows why, and `gpq doctor` shows how to fix it",
    # Behind a gate
    "waits-for-success": "job {job}{facts} must succeed first",
    "waits-for-failure": "job {job}{facts} must end without success first",
    "waits-for-end": "job {job}{facts} must end first",
    "begins-later": "--begin keeps it waiting for another {wait:span}",
    "array-full": (
        "{count} {count:job|jobs} of array {array} {count:holds|hold} GPUs, and at most {limit} may"
    ),
    "edit-after": "`gpq edit {job} --after none` lets it start without them",
    "edit-begin": "`gpq edit {job} --begin now` lets it start at once",
    "edit-array-limit": "`gpq edit {array} --array-limit {limit}` lets one more run",
    # Between attempts
    "retry": "tries again in {wait:.0f} s",
    "attempt-ended": f"{{line}}. {_NEXT_ATTEMPT}",
    "attempt-failed": f"its last attempt failed. {_NEXT_ATTEMPT}",
    "attempt-lost": f"its last attempt was lost with its server. {_NEXT_ATTEMPT}",
    "starts-after-restore": "starts in {wait:.0f} s",
    "servers-report": (
        f"{_RESTORED}. gpq first asks the servers whether the job has run there since"
    ),
    "orphan-harm": (
        f"{_RESTORED} made before that attempt. A second attempt at the same time might damage the"
        " job's files"
    ),
    "kill-orphan": (
        "`kill {pid}` on {server} ends that attempt. The job starts when the attempt has ended."
        " Its log: {folder}"
    ),
    "orphan-log": "the job starts when that attempt has ended. Its log: {folder}",
    "waits-for-checkpoint": "waits for its checkpoint: {line}",
    "checkpoint-away": "{line}. gpq does not start the job from the beginning",
    "give-up-checkpoint": (
        f"it resumes when the server is back. {_GIVE_UP}. `gpq requeue --fresh {{job}}` then starts"
        " it from the beginning"
    ),
    # Fits nowhere now
    "servers-drained": "servers are drained",
    "fits-only-drained": "it needs GPUs of servers that are drained: {servers:list}",
    "undrain": "`gpq nodes undrain {server}` lets jobs start there again",
    "reserved": "GPUs are reserved",
    "fits-only-reserved": "it needs GPUs that are reserved",
    "unreserve": "`gpq nodes unreserve {reservation}` gives the GPUs back to everybody",
    "servers-of-others": "servers belong to other users",
    "server-owned": (
        "server {server} belongs to {owner}. Other users' jobs start there only if they can leave"
        " again"
    ),
    "edit-background": (
        "`gpq edit {job} --background` lets it run there until somebody else can use the GPUs"
    ),
    "waits-for-checkpoint-server": "waits for server {server}, which has its checkpoint",
    "checkpoint-stays": "{line}. So the job cannot resume on {servers:list}",
    "share-checkpoints": (
        "remove that from the checkpoint folder there. gpq checks again within ten minutes. Or set"
        " `checkpoints` to a folder that the servers share"
    ),
    # Fits nowhere ever
    "no-such-gpu": "no such GPU",
    "gpus-there-are": "it asks for {request}, but the servers have: {types:list}",
    "gpus-out-of-use": "GPUs are out of use",
    "needs-gpus-out-of-use": "it needs {gpus:gpus}, but some are out of use",
    "too-large": "asks for more GPUs than there are",
    "too-large-for-all": "it asks for {gpus:gpus}, but all servers together have {most}{kind}",
    "too-large-for-server": (
        "it asks for {gpus:gpus} on one server, but the largest server has {most}{kind}"
    ),
    "one-mig-device": (
        "a job gets at most one MIG device, because CUDA shows a process only one of them"
    ),
    "edit-gpus": "`gpq edit {job} --gpus {gpus}` lets it run on the GPUs that there are",
    # Waits for GPUs
    "waits-for-gpus": "waits for GPUs",
    "waits-in-background": "waits for GPUs that nobody else wants",
    "gpus-being-freed": "GPUs are being freed",
    "gpus-on-the-way": "the last round gave it {gpus:gpus}. It starts when they are free",
    "too-few-free": "it needs {gpus:gpus}, and {free} of {total} are free",
    "free-scattered": (
        "it needs {gpus:gpus} on one server. {free} of {total} are free, but on different servers:"
        " {by_server:list}"
    ),
    "server-unfit": "gpq cannot use {line}",
    "held-by": "GPUs are in use by {jobs:holders}",
    "user-borrows": (
        "user {user} has {gpus:gpus}, {borrowed} of them beyond the floor of {floor}. These go back"
        " when another user needs them"
    ),
    "floor-full": "user {user} has {gpus:gpus}, and their floor is {floor:gpus}",
    "floor-part": _FLOOR,
    "floor-due": (
        f"{_FLOOR}. gpq now gives them what their jobs can use of it, although the policy would not"
    ),
    "floor-later": (
        f"{_FLOOR}, and gets what their jobs can use of the rest within {{wait:span}}, because the"
        " policy has left them short for {since:span}"
    ),
    "beyond-floor": (
        "it cannot give GPUs back, so it may use only {user}'s floor of {floor:gpus}{kind}. Other"
        " such jobs need {taken} of these"
    ),
    "start-window": "{window:window}",
    "gpus-free": "the GPUs are free",
    "jobs-ahead": "{jobs:ahead} {jobs:is|are} ahead of it",
    "ahead-too-large": (
        "{jobs:ahead} {jobs:is|are} ahead of it, and they do not all fit at the same time"
    ),
    "end-unknown": (
        "{jobs:ahead} {jobs:has no time limit (--time) and has not reported its|have no time limit"
        " (--time) and have not reported their} length"
    ),
    "end-by-progress": "job {job} seems to need another {seconds:span}",
    "end-by-limit": "the time limit of job {job} ends it by then",
    "smaller-first": (
        "jobs that need fewer GPUs may start before it, because gpq keeps no GPUs idle for it"
    ),
    "others-first": "it is a background job, so jobs that are not in the background go first",
    "wait-for-end": (
        "it may start when {jobs:jobs} {jobs:ends|end}, because gpq may not move {jobs:it|them}"
    ),
    "edit-to-fit": (
        "it fits on the free GPUs if {gpus:gpus} {gpus:is|are} enough: `gpq edit {job} --gpus"
        " {gpus}`"
    ),
    "edit-to-borrow": (
        "`gpq edit {job} --time` with at most {limit:span}, or `gpq edit {job} --background`, lets"
        " it use GPUs beyond the floor"
    ),
    "edit-no-background": "`gpq edit {job} --no-background` makes it an ordinary job",
    # Runs
    "runs": "runs on {gpus:gpus}",
    "runs-on-drained": "{line}. gpq starts nothing new there",
    "runs-on-reserved": "it must leave: {line}",
    "intruder": "warning: {line}",
    "unused-gpus": "warning: it {line}",
    "idle-keeps": "it left GPUs unused, so it keeps only {gpus:gpus} until it uses them",
    "idle-shrinks": "it left GPUs unused, so gpq reduces it to {gpus:gpus} until it uses them",
    "runs-in-background": (
        "it is a background job, so it leaves as soon as somebody else can use its GPUs"
    ),
    "undeclared": (
        "the script has not declared itself yet (gpq.init() and a loader), so gpq does not move it"
    ),
    "rigid": "it is rigid: it keeps the GPUs that it asked for until it ends",
    "batch": "its batch size is {total}",
    "batch-fixed": (
        "its batch size is {total}. It lets gpq change its GPUs, but not its batch size"
    ),
    "batch-worth-unknown": (
        "its batch size is {total}. gpq does not know yet what another one would be worth"
    ),
    "batch-worth": (
        "its batch size of {total} gives x{ratio:.2f} of the goodput of its base batch size"
        " {declared}"
    ),
    "batch-declared": "its batch size of {total} is its base batch size, and {better}",
    "batch-near-declared": (
        "its batch size of {total} is the nearest to its base batch size {declared} that is"
        " possible here, and {better}"
    ),
    "no-better-batch": "no other gives more goodput on these GPUs",
    "better-batch": "{total} would give x{ratio:.2f} of its goodput, as far as gpq knows now",
    "more-gpus": _MORE_GPUS,
    "more-gpus-no-faster": (
        "{gpus} GPUs would not make it faster: its goodput would change by {ratio:percent}"
    ),
    "more-gpus-gang": (
        f"{_MORE_GPUS}, but the policy {{policy}} gives every job only the fewest that it asked for"
    ),
    "more-gpus-but-idle": (
        f"{_MORE_GPUS}. {_FREE}, but it gets none while it leaves some of its own unused"
    ),
    "more-gpus-but-just-moved": (
        f"{_MORE_GPUS}. {_FREE}, but it was started too recently to be moved again"
    ),
    "more-gpus-not-worth-restart": f"{_MORE_GPUS}. {_FREE}, but that was not worth a restart",
    "more-gpus-no-giver": f"{_MORE_GPUS}, but no running job can give any",
    "givers": "jobs that could give GPUs: {changes:givers}",
    "resize-ordered": (
        "it has {gpus:gpus}, but {line}. gpq resizes it as soon as there is room and it may be"
        " moved"
    ),
    "has-exactly": "it has exactly as many GPUs as it may have ({count})",
    "has-most": "it has as many GPUs as it may have ({count})",
    "has-all": "it has all the GPUs that there are ({count})",
    "has-fewest": "it has the fewest GPUs that it may have ({count})",
    "shared-gpus": "it shares {gpus:gpus} with {jobs} other running {jobs:job|jobs}",
    "last-restart": (
        "its last restart took {seconds:.1f} s {how}: {stop:.1f} s to stop, {start:.1f} s until the"
        " first step"
    ),
    "resize-promised": (
        "its last resize, {before} -> {gpus:gpus}, promised goodput x{promised:.2f}. What it brings"
        " is not measured yet"
    ),
    "resize-brought": (
        "its last resize, {before} -> {gpus:gpus}, promised goodput x{promised:.2f} and brought"
        " x{measured:.2f}"
    ),
    "started-just-now": "it was started a moment ago, so gpq does not move it yet",
    "goodput-unknown": "its goodput is not known yet: gpq waits for its first step times",
    "no-model": (
        "gpq has no model of it, because no model fits the times that it reported. Its goodput is"
        " not known"
    ),
}
MOST_JOBS = 6  # jobs that a sentence names
MOST_AHEAD = 3


@dataclass(frozen=True, slots=True)
class Texts:
    """`JobReasons` in words."""

    headline: str
    reasons: tuple[str, ...]
    remedies: tuple[str, ...]


def texts(answer: JobReasons) -> Texts:
    return Texts(
        text(answer.headline),
        tuple(map(text, answer.reasons)),
        tuple(map(text, answer.remedies)),
    )


def text(reason: Reason) -> str:
    return _FORMATTER.vformat(SENTENCES[reason.code], (), reason.facts)


class _Formatter(string.Formatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        if isinstance(value, Reason):
            return text(value)
        if "|" in format_spec:
            return _by_number(value, *format_spec.split("|"))
        if format_spec in FORMATS:
            return FORMATS[format_spec](value)
        return format(value, format_spec)


def _by_number(value: int | Collection[object], singular: str, plural: str) -> str:
    number = value if isinstance(value, int) else len(value)
    return singular if number == 1 else plural


def _jobs(names: Sequence[int]) -> str:
    return _by_number(names, "job ", "jobs ") + ", ".join(map(str, names[:MOST_JOBS]))


def _jobs_ahead(names: Sequence[int]) -> str:
    """`job 3`, or `jobs 3, 4 and 5`, or `jobs 3, 4, 5 and 9 others`."""
    if len(names) == 1:
        return f"job {names[0]}"
    if len(names) <= MOST_AHEAD + 1:
        return f"jobs {', '.join(map(str, names[:-1]))} and {names[-1]}"
    overflow = len(names) - MOST_AHEAD
    return f"jobs {', '.join(map(str, names[:MOST_AHEAD]))} and {overflow} others"


def _holders(jobs: Sequence[Job]) -> str:
    more = " and others" if len(jobs) > MOST_JOBS else ""
    holders = (f"job {job.id} ({job.spec.user}, {gpus(job.replicas)})" for job in jobs[:MOST_JOBS])
    return ", ".join(holders) + more


def _givers(changes: Sequence[Change]) -> str:
    return ", ".join(
        f"job {change.job} would lose {max(100 * (1 - change.ratio), 0):.0f}% with"
        f" {gpus(change.gpus)}"
        for change in changes
    )


def _window(window: Window) -> str:
    if window.latest < SOON:
        return "it may start at once"
    because = ", and ".join(map(text, window.because))
    if window.latest == NEVER and window.open:
        return f"gpq cannot tell when it may start: {because}"
    begin = "as soon as jobs release GPUs"
    if window.earliest >= SOON:
        begin = f"in {span(window.earliest)} at the earliest"
    if window.latest == NEVER:
        return f"it may start {begin}, but gpq cannot tell the latest time: {because}"
    latest = span(window.latest)
    return f"it may start {begin}, and within {latest} if no other job comes first: {because}"


FORMATS: dict[str, Callable[[Any], str]] = {
    "gpus": gpus,  # 2 GPUs
    "span": span,  # 40 s
    "percent": lambda ratio: f"{100 * (ratio - 1):+.0f}%",
    "list": lambda names: ", ".join(map(str, names)),
    "jobs": _jobs,  # jobs 3, 4
    "ahead": _jobs_ahead,  # jobs 3, 4 and 5
    "holders": _holders,
    "givers": _givers,
    "window": _window,
    "cause": lambda cause: f": {cause}" if cause else "",
}
_FORMATTER = _Formatter()
