"""Requests that a node agent answers, and the kinds of its refusals.

Files between servers all go by way of the daemon (node/files/staging.py). A set is a listing of
node/spool/trees.py: [[path, size, mark, mode, time of change, bytes on the disk], ...]. WHAT is
{"job": 42}, or {"code": SHA-256 of the archive} whose set is that one file. "files", "digest",
"stage" and "seal" are answered when they are worked out.

Attempt states in replies: "starting" (recorded, not yet running), "running", "exited" (exit record
there), "orphan" (the shim is gone, processes of the tree live on), "lost" (neither shim, nor
processes, nor exit record).
"""

OPS = (
    # {"store", "epoch"} -> {"version", "boot_id", "time", "stamp", "python", "host", "cores",
    # "memory_mib", "spool", "devices", "attempts", "library": folder that it was loaded from,
    # "address": under which ssh reached it, or "", "network": [[interface, address]] that others
    # may try, "ephemeral": [first, last], "storage": id of the folder of the checkpoints: where it
    # is the same, they are shared}
    "hello",
    # {} -> {"time"}
    "ping",
    # {} -> {"devices": [DeviceInfo], "driver": str, "error": str, "beside": names of the other
    # spools of this machine in the same folder}; probing runs in a child with a time limit
    "probe",
    # {"prepare": PrepareOrder} -> {"fit": bool, "reason", "fix"}; answered once the setup has ended
    "prepare",
    # {"order": StartOrder} -> {"state": "started" | "already", "attempt": AttemptInfo}
    "start",
    # {"attempt": "42.1", "mode", "grace"} -> {"attempt": AttemptInfo}; may be repeated, harder each
    # time
    "stop",
    # {"attempt": "42.1", "control": Control} -> {}
    "control",
    # {"offsets": {"42.1": n}, "wait": seconds, "seen": digest, "heard": stamp or none, "look":
    # seconds between two looks at the GPUs, if they are to be shorter than usual}
    # -> {"digest", "attempts", "devices", "time", "stamp", "yields": users who want the server
    # back}; long poll: answers as soon as an attempt changed state or has report lines past its
    # offset, or after `wait`; one that was forgotten before and is asked for is told again: the
    # database was restored from a copy
    "watch",
    # {"attempt": "42.1", "offset": n, "limit": bytes, "skip": bool}
    # -> {"data": base64, "offset": next, "size": bytes, "skipped": bytes}
    # with `skip` a part that was cut out (log_limit) is left out: `offset` = n + skipped + length
    # of data
    "tail",
    # {"attempt": "42.1"} -> {}: the exit record is durable elsewhere; the log stays
    "forget",
    # {"job": 42} -> {}: remove logs and checkpoints of a job
    "purge",
    # {"job"} -> {"files": set of what has to follow the job, "age": of two sets the newer has the
    # larger, "stays": why they can not, "" where they can}
    "files",
    # {"job", "path", "offset", "limit"} -> {"skip": bytes of a hole that come first, "data":
    # base64}
    "fetch",
    # {"job", "paths": of small files} -> {"data": [base64 of the first of them, ...]}: as many as a
    # piece holds
    "gather",
    # {"job", "path"} -> {"digest"}, as trees.digest; of those whose mark is a time
    "digest",
    # {WHAT, "files": set} -> {"missing": [[place in the list, offset to go on at], ...]}
    "stage",
    # {WHAT, "at": place, "offset", "skip", "data": base64} -> {"offset": where it goes on}
    "put",
    # {WHAT, "parts": [[place, base64 of a small file], ...]} -> {}
    "scatter",
    # {WHAT, "files": set, "digests": {place: digest}} -> {}: all is there, proved and renamed in
    "seal",
    # {} -> {"jobs": [42, ...], "code": [SHA-256, ...]}: whose files lie here
    "kept",
    # {WHAT} -> {}: remove them
    "drop",
    # {"errand": name, "fields", "limit": seconds} -> {"answer"}: what `gpq doctor` has a server
    # look at, in a process of its own (node/doctor/checks.py); {"answer": {"error"}} where it fails
    # or takes too long
    "errand",
    # {} -> {}: the agent ends; shims and jobs live on
    "quit",
)

# Kinds of a refusal: "wrong" (asked again it is refused again), "busy" (a device, a full disk: try
# again later), "port" (taken: launch again with another), "expired" (the start order came too late:
# send a new one), "stale" (a newer daemon of the same store has taken over); and two that a shell
# has exit codes for, 127 and 126: "not-found" (no such command), "not-executable" (it cannot be
# run); "unfit": something that `prepare` looks for is not there (any more); and "used": an attempt
# of that number was here and is forgotten (the database was restored from a copy), so launch
# another. All but "busy", "port", "expired", "stale", "unfit" and "used" are for good. A "busy"
# with ``"taken": true`` will not pass soon: the device is somebody else's, or out of use, and the
# job better off elsewhere at once.
REFUSALS = (
    "wrong",
    "busy",
    "port",
    "expired",
    "stale",
    "not-found",
    "not-executable",
    "unfit",
    "used",
)
