"""The messages between daemon, node agent, shim and training process: one JSON object a line, with
a version.

This module is the only thing that gpq, `gpq_agent.node` and `gpq_agent.train` share. What it offers
is written in `gpq_agent/messages`, by topic. Standard library only, Python >= 3.8.

Three conversations are defined here:

1. daemon <-> node agent, over one byte pipe (stdin/stdout of `python -m gpq_agent.node`): every
   line from the daemon is a request ``{"v", "id", "op", ...}``, every line back is its reply
   ``{"v", "id", "ok": true, ...}`` or ``{"v", "id", "ok": false, "error", "hint", "kind"}``
   (`REFUSALS`). The agent never speaks first, except for one ``hello`` line.
2. node agent <-> shim, through files in the attempt's directory (`ATTEMPT_FILES`). Each is written
   whole or not at all (`write_json`: temporary file, fsync, rename), except the two logs, which are
   append-only.
3. daemon <-> training process, through two files in that same directory: `control.json` comes down
   (an order, replaced atomically, numbered), `report.jsonl` goes up (append-only, so that a lost
   connection loses nothing).

Time on the wire. Every reply to `hello` and `watch` is a report; its `stamp` is the node's
CLOCK_BOOTTIME at that moment (seconds since boot, sleep included; nobody can set it). A stamp means
something on the node that made it and in that boot alone; the daemon carries it back, and takes the
ages of what the report tells from it. No rule below reads a wall clock.

Start orders expire. `order.stamp` is that of the last report the daemon took in before it sent the
order, `order.boot_id` the boot it was made in. The agent refuses ("expired") another boot's order,
and one that arrives START_EXPIRY seconds or more after its stamp: it may have been replaced
meanwhile.

Leases (`order.lease` > 0 seconds; 0: the job runs on without the daemon for as long as it likes).

a. A report is acknowledged by the next `watch` of the same connection: its `heard` is the report's
stamp. The daemon sends
   `heard` only after it has (1) noted the moment `taken in` on its own CLOCK_BOOTTIME and (2)
   found, after the report came, that the database still has this daemon's epoch. The start order
   itself acknowledges its `stamp`.
b. The agent keeps the highest acknowledged stamp of each store in `<spool>/lease.<store>.json`; not
when its daemon's
   epoch is stale. The shim's lease ends at max(order.stamp, that stamp) + order.lease by
   CLOCK_BOOTTIME. Then it sends TERM to the whole tree, KILL order.lease_margin / 3 seconds after
   that end (at once where it slept through both), and records the end with `fenced`. A lease that
   was renewed too late is over all the same: TERM is not taken back. Where the shim is gone or
   stands still a second process does that within the rest of the margin (node/shim/guard.py).
c. The daemon gives a part of an attempt up lease + lease_margin seconds after it took in the node's
last report, by its
   CLOCK_BOOTTIME. A new daemon counts from its own start (the one before it can acknowledge nothing
   made later, by a2). Once every part is over, given up or told, the job is pending again under the
   next attempt number. Node's end = acknowledged stamp + lease + margin / 3 <= last report taken in
   + lease + margin = daemon's patience: the clocks are never compared, only their rates need agree,
   and messages may be late by any time.
d. News of a part that was given up changes nothing but the journal: its end is recorded there when
the node tells it;
   what still lives of it (its shim was killed, say) is killed.

Environments. `prepare` asks whether what a job needs is on the node, and runs its setup there once:
once more only when it failed, when what it made is gone, or under another name (`environment`, a
digest that the daemon makes; the agent only compares it). Nothing of a job is started by it, and no
device is given. What the setup exported is kept in the spool, and a start order that names the
environment in `setup` is started with it. An agent that does not know `prepare` refuses it as any
unknown operation; the daemon then takes every environment for fit there. A start order without
`setup` and `environment` is started as ever.

Epochs. `hello` names the daemon's `store` (id of its database) and `epoch` (which grows with each
start). The agent keeps the highest epoch of each store in `<spool>/epoch.<store>.json`, durably,
and refuses ("stale") what an older one asks that changes or renews anything; a start looks again
under the spool's lock.

Meetings. Where `order.masters` is not empty, the processes that the shims start meet before they
become the user's program (node/shim/rendezvous.py): rank 0's listens on `order.port`, each other
tries the addresses, all take the first that all reach, and each exports the interface that leads
there. Where they do not meet, UNLAUNCHED says why, and nothing of the user's has run. They talk in
this encoding: {"token"} and back, then {"node", "reached", "port"} from each, {"address"} or
{"error"} to each.

Ends. An exit code 0 after a stop order says nothing: programs that save on a signal often end with
0, and so does one that came to its end at that very moment. The shim tells them apart (`finished`,
`evidence`; node/shim/completion_evidence.py) by what was made during this attempt: FINISHED, the
done file of the order, a checkpoint that was written at the last step. A record without these
fields (an older agent's) says nothing: such an attempt is run again, which costs its tail and loses
nothing.

Pulses. Each training process writes its step and phase into a mapped file (RANK, PULSE); the agent
tells them in `watch` (`AttemptInfo.ranks`). They are no reports: none is kept, and a daemon that
knows nothing of them misses nothing.
"""

from gpq_agent.messages.attempt_files import *  # noqa: F403
from gpq_agent.messages.checks import *  # noqa: F403
from gpq_agent.messages.gpu_checks import *  # noqa: F403
from gpq_agent.messages.job_environment import *  # noqa: F403
from gpq_agent.messages.json_lines import *  # noqa: F403
from gpq_agent.messages.operations import *  # noqa: F403
from gpq_agent.messages.orders import *  # noqa: F403
from gpq_agent.messages.reports import *  # noqa: F403
from gpq_agent.messages.states import *  # noqa: F403

VERSION = 1
START_EXPIRY = 20.0  # seconds from the stamp of a start order to its refusal
