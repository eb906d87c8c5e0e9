"""Requests that an agent answers, and the kinds of its refusals.

Files between servers have processes and connections of their own (node/files/sending.py). WHAT is
{"job": 42}, or {"code": SHA-256 of the archive}.

Attempt states in replies: "starting" (recorded, not yet running), "running", "exited" (has an exit
record). "orphan": the shim is gone, but processes of the tree live. "lost": no shim, no processes
and no exit record.
"""

OPS = (
    # {"store", "epoch"} -> {"version", "boot_id", "time", "stamp", "python", "host", "cores",
    # "memory_mib", "spool", "devices", "attempts", "library": the folder that the agent was loaded
    # from, "address": the one that ssh reached it at, or "", "network": [[interface, address]] that
    # others may try, "ephemeral": [first, last], "storage": id of the checkpoint folder. Servers
    # with the same id share the folder, "standbys": how many are ready. An agent without it knows
    # no `warm`}
    "hello",
    # {} -> {"time"}
    "ping",
    # {} -> {"devices": [DeviceInfo], "driver": str, "error": str, "beside": names of the other
    # spools of this machine in the same folder}. A child process with a time limit queries the GPUs
    "probe",
    # {"prepare": PrepareOrder} -> {"fit": bool, "reason", "fix"}, once the setup has ended
    "prepare",
    # {"order": StartOrder} -> {"state": "started" | "already", "attempt": AttemptInfo}
    "start",
    # {"order": StartOrder} -> {}. The attempt may come here next, so keep a standby for it for a
    # while. `devices` names any one that it could have
    "warm",
    # {"attempt": "42.1", "mode", "grace"} -> {"attempt": AttemptInfo}. May be repeated, harder each
    # time
    "stop",
    # {"attempt": "42.1", "control": Control} -> {}
    "control",
    # {"offsets": {"42.1": n}, "wait": seconds, "seen": digest, "heard": stamp or none, "look":
    # seconds between two looks at the GPUs, if shorter than usual} -> {"digest", "attempts",
    # "devices", "time", "stamp", "yields": users who want the server back}. A long poll: it answers
    # when an attempt changes state or has report lines past its offset, or after `wait`. If the
    # daemon asks for an attempt that it had forgotten, the agent reports it again, because the
    # database was restored from a copy
    "watch",
    # {"attempt": "42.1", "offset": n, "limit": bytes, "skip": bool} -> {"data": base64, "offset":
    # next, "size": bytes, "skipped": bytes}. `skip` leaves out a part that was cut out (log_limit):
    # `offset` = n + skipped + length of data
    "tail",
    # {"attempt": "42.1"} -> {}: the exit record is durable elsewhere. The log stays
    "forget",
    # {"job": 42} -> {}: remove logs and checkpoints of a job
    "purge",
    # {} -> {"jobs": [42, ...], "code": [SHA-256, ...], "coming": [SHA-256, ...]}: the owners of
    # files on this server. `coming`: code that has not arrived
    "kept",
    # {WHAT} -> {}: remove them
    "drop",
    # {"errand": name, "fields", "limit": seconds} -> {"answer"}: a check for `gpq doctor`, or a
    # look at the files of a job, in its own process (node/doctor/checks.py). {"answer": {"error"}}
    # if it fails or takes too long
    "errand",
    # {} -> {}: the agent ends, shims and jobs live on
    "quit",
)

# Kinds of a refusal: "wrong" (asking again does not help), "busy" (a device, a full disk: try again
# later), "expired" (the start order came too late: send a new one), "stale" (a newer daemon of the
# same store has taken over). Two have exit codes in a shell, 127 and 126: "not-found" (no such
# command) and "not-executable". "unfit": something that `prepare` checks is missing. "used": an
# attempt of this number was here and is forgotten, because the database was restored from a copy,
# so launch another. "wrong", "not-found" and "not-executable" are permanent. A "busy" with
# ``"taken": true`` will not pass soon: somebody else has the device, or it is out of use, so the
# job should start elsewhere at once.
REFUSALS = ("wrong", "busy", "expired", "stale", "not-found", "not-executable", "unfit", "used")
