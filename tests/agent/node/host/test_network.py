"""What a server finds out about its own network, with names and kinds that occur on shared machines."""

from __future__ import annotations

import socket

import pytest
from gpq_agent.node.host import network
from gpq_agent.node.host.network import Interface

LO = Interface("lo", "127.0.0.1", 8, "loopback")


def test_the_loopback_and_every_address_of_this_machine_are_found() -> None:
    found = network.interfaces()
    assert LO in found
    own = network.local_address("203.0.113.1")  # sends nothing. "" if there is no default route
    if own:
        assert network.interface_of(own, found) in network.default_interfaces()
    assert network.interface_of("203.0.113.1", found) == ""
    assert network.interface_of("127.0.1.1", found) == "lo"


@pytest.mark.parametrize(
    ("name", "flags", "default", "kind"),
    [
        ("lo", 0x9, False, "loopback"),
        ("eno1", 0x1, False, "ethernet"),
        ("docker0", 0x1, False, "inner"),
        ("br-5f2c", 0x1, False, "inner"),
        ("br-lan", 0x1, True, "ethernet"),
        ("virbr0", 0x1, False, "inner"),
        ("wg0", 0x11, False, "tunnel"),
    ],
)
def test_kinds(name: str, flags: int, default: bool, kind: str) -> None:
    assert network._kind(name, flags, default) == kind


def test_candidates_lead_out_and_the_default_route_comes_first() -> None:
    known = [
        LO,
        Interface("docker0", "172.17.0.1", 16, "inner"),
        Interface("wg0", "10.9.0.1", 24, "tunnel"),
        Interface("ib0", "10.1.0.1", 24, "ethernet"),
        Interface("eno1", "192.168.0.4", 24, "ethernet", default=True),
        Interface("eno2", "169.254.3.4", 16, "ethernet"),
        Interface("eno1", "fe80::1", 64, "ethernet", default=True),
        Interface("eno1", "2001:db8::4", 64, "ethernet", default=True),
    ]
    found = [one.address for one in network.candidates(known)]
    assert found == ["192.168.0.4", "2001:db8::4", "10.1.0.1", "10.9.0.1"]


def test_an_address_answers_or_gpq_says_why_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert network.reachable("127.0.0.1", port) == ""
    assert network.reachable("127.0.0.1", port) == "connection refused"
    with socket.socket() as full:  # bound, but nobody listens: it looks like a filter that drops packets
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        waiting = [socket.socket() for _ in range(4)]
        try:
            for one in waiting:
                one.setblocking(False)
                one.connect_ex(full.getsockname())
            assert network.reachable("127.0.0.1", full.getsockname()[1], 0.2) == "no answer within 0.2 s"
        finally:
            for one in waiting:
                one.close()


def test_the_ephemeral_range_is_the_kernels() -> None:
    first, last = network.ephemeral_ports()
    assert 1024 <= first < last <= 65535
