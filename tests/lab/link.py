"""Faults of the network between a server and all others, one at a time or together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.lab.machine import run

if TYPE_CHECKING:
    from tests.lab.server import Server

IN, OUT = ("INPUT", "-i"), ("OUTPUT", "-o")


class Link:
    """The first interface of a server. This kernel may lack netem: what is slow is slow by queueing (tbf)."""

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
        """The server has booted: its filters and queues are new, its cable is where it was."""
        self._slow = False
        if self._cut:
            self.cut()

    def cut(self) -> None:
        """The cable is pulled, at the switch: the server may see it, those who talk to it do not."""
        self._cut = True
        run("ip", "link", "set", self._outside, "down")

    def heal(self) -> None:
        """The cable is back, and every other fault is over."""
        self._cut = False
        run("ip", "link", "set", self._outside, "up")
        self.undrop()
        self.full_speed()

    def _filter(self, way: tuple[str, str], *rule: str) -> None:
        chain, option = way
        self._in_network("iptables", "-w", "-I", chain, option, self._inside, *rule)

    def drop_in(self) -> None:
        """What is sent to the server is lost."""
        self._filter(IN, "-j", "DROP")

    def drop_out(self) -> None:
        """What the server sends is lost."""
        self._filter(OUT, "-j", "DROP")

    def loss(self, share: float) -> None:
        """This share of the packets is lost, each way."""
        for way in (IN, OUT):
            chance = ("--mode", "random", "--probability", str(share))
            self._filter(way, "-m", "statistic", *chance, "-j", "DROP")

    def reject(self) -> None:
        """TCP to the server is answered with a reset."""
        self._filter(IN, "-p", "tcp", "-j", "REJECT", "--reject-with", "tcp-reset")

    def undrop(self) -> None:
        """No packet is dropped or rejected any more."""
        self._in_network("iptables", "-w", "-F")

    def slow(self, rate: str, latency: str = "400ms") -> None:
        """So much a second each way, as tc writes it (256kbit); what would wait in the queue for longer is dropped."""
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
