"""Adds the servers of a team to config.toml, as far as this user reaches them.

The arbiter may name any host. So only a name, an address, a port and a number of CPU slots are
taken, in the shape that config.toml has, and each server is tried as if the user had typed its
address after `gpq nodes add`.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpq import config
from gpq.config_rules import is_address
from gpq.errors import GpqError
from gpq.rpc.team_messages import TeamServer
from gpq.servers.adding import Wanted, add
from gpq.servers.first_contact import Talk
from gpq.views.detail import count
from gpq.views.team import place

MOST = 64  # servers to try


def add_each(rows: Sequence[TeamServer], talk: Talk, *, here: bool) -> None:
    """Says one line about each that this user does not have. `here`: servers without an address
    are on this machine."""
    if not rows:
        talk.say("the arbiter knows of no servers yet. To join again adds them")
    nodes = config.load().nodes
    here = here and any(node.connector == "local" for node in nodes.values())
    own = {(node.host.rpartition("@")[2], node.port) for node in nodes.values() if node.host}
    own |= {("", 0)} if here else set()
    new = [row for row in rows if (row.address, row.port) not in own]
    places = [place(row) for row in new[:MOST] if is_address(row.address, row.port)]
    if places:
        talk.say(f"servers of the team that you do not have, tried as you: {' '.join(places)}")
    for row in new[:MOST]:
        talk.say(f"{row.name}  {_outcome(row, talk)}")
    if len(new) > MOST:
        talk.say(f"{len(new) - MOST} more servers are left out. `gpq nodes --team` lists them")


def _outcome(row: TeamServer, talk: Talk) -> str:
    """What it has, or why it is left out."""
    if not row.address:
        owner = ", ".join(row.members)
        return (
            f"left out: it is the own machine of {owner} (`gpq nodes add HOST` if you may log in)"
        )
    if not is_address(row.address, row.port):
        return "left out: what the arbiter says is no address (`gpq nodes --team` shows it)"
    if row.name in config.load().nodes:
        hint = f"`gpq nodes add {row.address} --name NAME` adds it, if it is another one"
        return f"left out: you have a server of this name ({hint})"
    slots = row.devices if row.kind == "cpu" else None
    server = Wanted(row.address, row.name, [], slots, "", row.port, "", "")
    try:
        devices = add(server, talk, yes=False, quiet=True)["devices"]
    except GpqError as error:
        hint = f" ({error.hint})" if error.hint else ""
        return f"left out: {error.message}{hint}"
    has_gpus = any(device["kind"] == "cuda" for device in devices)
    kind = "GPU" if has_gpus else "CPU slot"
    return count(len(devices), kind, f"{kind}s")
