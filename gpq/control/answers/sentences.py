"""What `gpq why` says for each code of a reason, headline or remedy: all of its words.

A sentence names its facts as `str.format` does. After the colon stands how a fact is said, one of
`reason_text.FORMATS`, or `one|many`: the word for such a number.
"""

from __future__ import annotations

_MORE_GPUS = "{gpus} GPUs would change its goodput by {ratio:percent}"
_GIVE_UP = "`gpq cancel {job}` gives the job up"

# Codes are stable. One that goes, or that means something else, raises the schema number.
SENTENCES = {
    # What it is about to do
    "cancelling": "being cancelled",
    "ending-processes": "it was cancelled; its processes are being ended",
    "starting": "starting",
    "starting-processes": "its processes are being started on {placement}",
    "bringing": "{line}",
    "starts-once-brought": "it starts on {placement} once that is there",
    "stopping": "stopping ({stop})",
    "asked-to-end": (
        "asked to stop {since:span} ago ({stop}); it has {grace:.0f} s from then to end"
    ),
    "asked-to-checkpoint": (
        "asked to stop {since:span} ago ({stop}); it has {grace:.0f} s from then to checkpoint"
    ),
    "stuck": "stuck: {line}",
    "stuck-process": "{line}",
    "stuck-gpus": (
        "it keeps {placement} until the kernel lets it go; everything else on {servers:list} goes"
        " on"
    ),
    "reboot": "if it never ends, reboot {servers:list} when its other jobs are over",
    "attempt-before": "its attempt before: {line}",
    # Held
    "held-by-user": "held by its user",
    "held-by-gpq": "{line}",
    "unmet-dependency": "{line}",
    "release": "`gpq release {job}` queues it again",
    # Servers that do not answer
    "server-silent": "{line}",
    "server-connecting": (
        "server {server} is being connected to, for the first time since the daemon's start"
    ),
    "server-unreachable": "server {server} does not answer{cause:cause}",
    "server-not-up": "server {server} is {state}{cause:cause}",
    "server-unconfigured": "server {server} is not in the configuration any more",
    "may-run-on": ("that says nothing about the job: it may run on or be over, and keeps its GPUs"),
    "cancel-waits": "the order to cancel waits until {servers:list} answers",
    "stop-waits": "the order to stop it ({stop}) waits until {servers:list} answers",
    "requeue-on-lost": (
        "--requeue-on-lost: it ends itself {lease:span} after the last contact and is queued again"
        " in {wait:span} at the earliest"
    ),
    "no-requeue-on-lost": (
        "without --requeue-on-lost it is not started a second time, however long the silence"
    ),
    "give-up-silent": (
        f"if {{servers:list}} is gone for good, take it out of config.toml, then {_GIVE_UP}"
    ),
    "give-up-unconfigured": (
        f"{_GIVE_UP}; with the server in config.toml again, gpq hears of it again"
    ),
    "servers-connecting": "servers are being connected to",
    "servers-silent": "servers do not answer",
    "may-fit-when-back": "it may fit once {servers:list} {servers:answers|answer}",
    "no-server-answers": "no server answers",
    "no-server-configured": "no server is configured",
    "see-nodes": "`gpq nodes` shows why, `gpq doctor` how to mend it",
    # Behind a gate
    "gate-unmet": "{line}",
    "gate-after": "{line}",
    "gate-begin": "{line}",
    "gate-array": "{line}",
    "waits-for-success": "job {job}{facts} is to succeed first",
    "waits-for-failure": "job {job}{facts} is to end without success first",
    "waits-for-end": "job {job}{facts} is to end first",
    "begins-later": "it was submitted to begin in {wait:span}",
    "array-full": "{count} of array {array} have GPUs, or are stopping, and at most {limit} may",
    "edit-after": "`gpq edit {job} --after none` lets it go without them",
    "edit-begin": "`gpq edit {job} --begin now` lets it go at once",
    "edit-array-limit": "`gpq edit {array} --array-limit {limit}` lets one more run",
    # Between attempts
    "retry": "tries again in {wait:.0f} s",
    "attempt-ended": "{line}; gpq waits {wait:.0f} s before the next attempt",
    "attempt-failed": "its last attempt failed; gpq waits {wait:.0f} s before the next attempt",
    "attempt-lost": (
        "its last attempt was lost with its server; gpq waits {wait:.0f} s before the next attempt"
    ),
    "starts-after-restore": "starts in {wait:.0f} s",
    "servers-report": (
        "the database was restored from a copy: servers first tell whether it runs there since"
    ),
    "orphan": "{line}",
    "orphan-harm": (
        "the database was restored from a copy made before that; a second one beside it might harm"
        " its files"
    ),
    "kill-orphan": (
        "`kill {pid}` on {server} ends it; when it has ended the job starts; its log: {folder}"
    ),
    "orphan-log": "when it has ended the job starts; its log: {folder}",
    "waits-for-checkpoint": "waits for its checkpoint: {line}",
    "checkpoint-away": "{line}; it is not started from the beginning",
    "give-up-checkpoint": ("it goes on when the server is back; `gpq cancel {job}` gives it up"),
    # Fits nowhere now
    "servers-drained": "servers are drained",
    "fits-only-drained": "it could only run on servers that are drained: {servers:list}",
    "server-drained": "{line}",
    "undrain": "`gpq nodes undrain {server}` lets jobs be placed there again",
    "reserved": "GPUs are reserved",
    "fits-only-reserved": "it could only run on GPUs that are reserved",
    "gpus-reserved": "{line}",
    "unreserve": "`gpq nodes unreserve {reservation}` gives the GPUs back to everybody",
    "servers-of-others": "servers are others'",
    "server-owned": "server {server} is {owner}'s: only jobs that can leave it start there",
    "edit-background": "`gpq edit {job} --background` lets it run there until somebody comes",
    "waits-for-checkpoint-server": "waits for server {server}, where its checkpoint stays",
    "checkpoint-stays": "{line}; so it cannot go on on {servers:list}",
    "share-checkpoints": (
        "remove that from the checkpoint folder there, and gpq looks again within ten minutes; or"
        " name one folder that the servers share as `checkpoints`"
    ),
    "environment": "{line}",
    "environment-unfit": "{line}",
    "environment-fix": "{line}",
    # Fits nowhere ever
    "no-such-gpu": "no such GPU",
    "gpus-there-are": "it asks for {request}; there is: {types:list}",
    "gpus-out-of-use": "GPUs are out of use",
    "needs-gpus-out-of-use": "it needs {gpus:gpus} and some are out of use",
    "gpu-out-of-use": "{line}",
    "too-large": "asks for more GPUs than there are",
    "too-large-for-all": "it asks for {gpus:gpus}; all servers together have {most}{kind}",
    "too-large-for-server": (
        "it asks for {gpus:gpus} on one server; the largest server has {most}{kind}"
    ),
    "one-mig-device": ("a job gets no more than one MIG device, for CUDA shows a process only one"),
    "edit-gpus": "`gpq edit {job} --gpus {gpus}` lets it run with what there is",
    # Waits for GPUs
    "waits-for-gpus": "waits for GPUs",
    "waits-in-background": "waits for GPUs that nobody else wants",
    "gpus-being-freed": "GPUs are being freed",
    "gpus-on-the-way": "the last round gave it {gpus:gpus}; it starts when they are free",
    "too-few-free": "it needs {gpus:gpus}; {free} of {total} are free",
    "free-scattered": (
        "it needs {gpus:gpus} on one server; {free} of {total} are free: {by_server:list}"
    ),
    "server-unfit": "not used for it: {line}",
    "held-by": "GPUs are held by {jobs:holders}",
    "start-window": "{window:window}",
    "gpus-free": "the GPUs are free",
    "jobs-ahead": "{jobs:ahead} {jobs:comes|come} before it",
    "ahead-too-large": (
        "{jobs:ahead} {jobs:comes|come} before it, and they do not all fit beside each other"
    ),
    "end-unknown": (
        "{jobs:ahead} {jobs:has told neither its length|have told neither their length} nor a time"
        " limit (--time)"
    ),
    "end-by-progress": "job {job} seems to need another {seconds:span}",
    "end-by-limit": "the time limit of job {job} ends it by then",
    "smaller-first": "jobs that need fewer GPUs may start before it: gpq keeps none idle for it",
    "others-first": "it was submitted for the background: whoever else waits goes first",
    "wait-for-end": (
        "it may start when {jobs:jobs} {jobs:ends|end}: gpq may not move what runs there"
    ),
    "edit-to-fit": (
        "it fits into what is free now if {gpus:gpus} will do: `gpq edit {job} --gpus {gpus}`"
    ),
    "edit-no-background": "`gpq edit {job} --no-background` makes it a job as any other",
    # Runs
    "runs": "runs on {gpus:gpus}",
    "runs-on-drained": "{line}; nothing new is placed there",
    "runs-on-reserved": "it is to leave: {line}",
    "intruder": "warning: {line}",
    "unused-gpus": "warning: it {line}",
    "idle-keeps": "it did not use what it had, and keeps {gpus:gpus} until it uses them",
    "idle-shrinks": "it did not use what it had, and is to have {gpus:gpus} until it uses them",
    "runs-in-background": (
        "it runs in the background: it leaves as soon as somebody else can use its GPUs"
    ),
    "undeclared": (
        "the script has not declared itself (no gpq.init() and loader yet), so it is not moved"
    ),
    "rigid": "it is rigid: it runs to its end with the GPUs that it asked for",
    "fixed-size": "{line}",
    "fixed-batch": "{line}",
    "habit-remedy": "{line}",
    "batch": "its total batch is {total}",
    "batch-fixed": "its total batch is {total}: it lets gpq change its GPUs, not its batch",
    "batch-worth-unknown": (
        "its total batch is {total}; what another would be worth is not known yet"
    ),
    "batch-worth": (
        "its total batch of {total} gives x{ratio:.2f} of the goodput of the {declared} that it"
        " declared"
    ),
    "batch-declared": "its total batch of {total} is the one it declared, and {better}",
    "batch-near-declared": (
        "its total batch of {total} is the nearest here to the {declared} that it declared, and"
        " {better}"
    ),
    "no-better-batch": "none is worth more on these GPUs",
    "better-batch": "{total} would give x{ratio:.2f} of its goodput, by what is known now",
    "more-gpus": _MORE_GPUS,
    "more-gpus-no-faster": (
        "{gpus} GPUs would not make it faster: its goodput would change by {ratio:percent}"
    ),
    "more-gpus-gang": (
        f"{_MORE_GPUS}; the policy {{policy}} gives no job more than the fewest that it asked for"
    ),
    "more-gpus-but-idle": (
        f"{_MORE_GPUS}; {{unused}} {{unused:is|are}} free, and it gets none while it does not use"
        " those that it has"
    ),
    "more-gpus-but-just-moved": (
        f"{_MORE_GPUS}; {{unused}} {{unused:is|are}} free, and it was started too short a time ago"
        " to be moved again"
    ),
    "more-gpus-not-worth-restart": (
        f"{_MORE_GPUS}; {{unused}} {{unused:is|are}} free, and that was not worth a restart"
    ),
    "more-gpus-no-giver": f"{_MORE_GPUS}; nobody who runs could give any",
    "givers": "who could give: {changes:givers}",
    "resize-ordered": (
        "it has {gpus:gpus}, and {line}: it is resized as soon as there is room and it may be moved"
    ),
    "has-exactly": "it has exactly what it may have ({count})",
    "has-most": "it has as many as it may have ({count})",
    "has-all": "it has all the GPUs that there are ({count})",
    "has-fewest": "it has the fewest that it may have ({count})",
    "shared-gpus": "{gpus:gpus} are shared with {jobs} other running {jobs:job|jobs}",
    "started-just-now": "it was started a moment ago and is not moved again yet",
    "goodput-unknown": "its goodput is not known yet: the first step times have to come in",
}
