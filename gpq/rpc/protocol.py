"""The protocol between the command line and the daemon: one JSON object per line on a Unix socket.

A request is ``{"v": VERSION, "op": ..., fields}``, an answer ``{"v": VERSION, "program": "0.2.0",
"ok": true, "result": {...}}`` or ``{"v", "program", "ok": false, "code": 4, "error": ..., "hint":
...}`` with the exit code of `gpq.errors`. A connection may carry many requests, one after the
other. `--json` prints `result` as it is, so the answers are a public format. Increase `SCHEMA` when
a field changes its meaning. Times are UTC in ISO 8601, and durations are in seconds.
"""

from __future__ import annotations

VERSION = 1
SCHEMA = 2
MAX_LINE = 1 << 20  # bytes of a request
LIKE_SLURM = "GPQ_LIKE_SLURM"  # set in a job that reads variables such as SLURM_JOB_ID
