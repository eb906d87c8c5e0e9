"""Network faults between a server and all others, one at a time or together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.lab.machine import run

if TYPE_CHECKING:
    from tests.lab.server import Server

IN, OUT = ("INPUT", "-i"), ("OUTPUT", "-o")


class Link:
    """The first interface of a server. This kernel may lack netem, so queueing (tbf) makes slow links slow."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._cut = False
        self._slow = False

    @property
    def _outside(self) -> str:
        return self.server.ports[0].outside

    @property
    def _inside(self) -> str:
        return self.server.ports[0].name

    def _in_network(self, *argv: str) -> None:
        run(*self.server.network_argv(*argv))

    def plugged(self) -> None:
        """The server has booted: its filters and queues are new, but its cable is unchanged."""
        self._slow = False
        if self._cut:
            self.cut()

    def cut(self) -> None:
        """Pull the cable at the switch. The server may see it, but its peers do not."""
        self._cut = True
        run("ip", "link", "set", self._outside, "down")

    def heal(self) -> None:
        """Plug the cable in again and end every other fault."""
        self._cut = False
        run("ip", "link", "set", self._outside, "up")
        self.undrop()
        self.full_speed()

    def _filter(self, way: tuple[str, str], *rule: str) -> None:
        chain, option = way
        self._in_network("iptables", "-w", "-I", chain, option, self._inside, *rule)

    def drop_in(self) -> None:
        """Drop packets to the server."""
        self._filter(IN, "-j", "DROP")

    def drop_out(self) -> None:
        """Drop packets from the server."""
        self._filter(OUT, "-j", "DROP")

    def loss(self, one_in: int) -> None:
        """Drop one in so many packets in each direction, counted and not at random. A long run of losses would be a
        silent server, by luck."""
        for way in (IN, OUT):
            self._filter(way, "-m", "statistic", "--mode", "nth", "--every", str(one_in), "--packet", "0", "-j", "DROP")

    def reject(self) -> None:
        """Answer TCP to the server with a reset."""
        self._filter(IN, "-p", "tcp", "-j", "REJECT", "--reject-with", "tcp-reset")

    def undrop(self) -> None:
        """Stop dropping and rejecting packets."""
        self._in_network("iptables", "-w", "-F")

    def slow(self, rate: str, latency: str = "400ms") -> None:
        """Limit each direction to this rate, as tc writes it (256kbit). Packets that would wait in the queue for longer
        are dropped."""
        self.full_speed()
        shape = ("root", "tbf", "rate", rate, "burst", "3000", "latency", latency)
        run("tc", "qdisc", "add", "dev", self._outside, *shape)
        self._in_network("tc", "qdisc", "add", "dev", self._inside, *shape)
        self._slow = True

    def full_speed(self) -> None:
        if self._slow:
            run("tc", "qdisc", "del", "dev", self._outside, "root")
            self._in_network("tc", "qdisc", "del", "dev", self._inside, "root")
        self._slow = False
