"""Replies to requests. If a request fails, its own reply says so."""

import sys
import traceback
from typing import Any, Callable, Dict

from gpq_agent import wire
from gpq_agent.node.devices.gpu_locks import TAKEN
from gpq_agent.node.host.errors import SpoolError
from gpq_agent.node.shim.leases import DaemonEpoch
from gpq_agent.node.spool.spool import Spool

Message = Dict[str, Any]
Handler = Callable[[Message], Message]
# Refused if a newer daemon has taken over:
REIGNING = (
    "watch",
    "prepare",
    "start",
    "warm",
    "stop",
    "control",
    "forget",
    "purge",
    "drop",
)


def refusal(number: Any, error: str, hint: str = "", kind: str = "wrong") -> Message:
    """The reply that refuses. `kind`: one of wire.REFUSALS, or TAKEN."""
    reply = {
        "v": wire.VERSION,
        "id": number,
        "ok": False,
        "error": error,
        "hint": hint,
        "kind": kind,
    }
    return dict(reply, kind="busy", taken=True) if kind == TAKEN else reply


class Replies:
    """The replies of one agent. `reign`: which daemon may change something."""

    def __init__(self, place: Spool, reign: DaemonEpoch) -> None:
        self.spool = place
        self.reign = reign

    def reply(self, message: Message, handler: Handler) -> Message:
        """If a request fails, its reply says so, and the agent lives on."""
        number = message.get("id")
        try:
            if message.get("op") in REIGNING:
                self.reign.admit()
            return dict(handler(message), v=wire.VERSION, id=number, ok=True)
        except SpoolError as error:
            return refusal(number, error.message, error.hint, error.kind)
        except wire.NotPrivate as error:
            return refusal(number, str(error), error.hint, "busy")
        except OSError as error:
            return refusal(
                number,
                "cannot use the spool: {}".format(error),
                "check {}".format(self.spool.path),
                "busy",
            )
        except (KeyError, TypeError, ValueError) as error:
            problem = "request {!r} is incomplete or invalid: {!r}".format(message.get("op"), error)
            return refusal(number, problem, "see wire.OPS")
        except Exception as error:
            traceback.print_exc(file=sys.stderr)
            return refusal(number, "the agent failed: {!r}".format(error), "this is a bug in gpq")
