"""This server's network: its interfaces and addresses, which of them other servers may try, and
whether an address answers.

It changes nothing and guesses no peer. IPv4 by ioctl, IPv6 and routes by /proc, with
the standard library alone.
"""

import array
import contextlib
import fcntl
import os
import re
import socket
import struct
import sys
from typing import Dict, List, NamedTuple, Tuple

SIOCGIFCONF, SIOCGIFFLAGS, SIOCGIFNETMASK = 0x8912, 0x8913, 0x891B
IFF_UP, IFF_LOOPBACK, IFF_POINTOPOINT = 0x1, 0x8, 0x10
ENTRY = 40  # bytes of a struct ifreq on machines with 8-byte pointers
EPHEMERAL = (32768, 60999)  # Linux's default ports of outgoing connections
# Networks of containers and virtual machines. Every server may use the same addresses there.
INNER = re.compile(
    r"(docker|podman|br-|virbr|veth|cni|flannel|cali|lxc|lxd|kube|vmnet|vboxnet|tap|dummy|ifb)"
)
LINK_LOCAL = re.compile(r"(169\.254\.|fe[89ab][0-9a-f]:)")


class Interface(NamedTuple):
    """One address of one interface that is up."""

    name: str
    address: str
    prefix: int  # bits of the network part
    # "ethernet" (or whatever else leads out), "tunnel", "inner" (containers, virtual machines),
    # "loopback"
    kind: str
    default: bool = False  # the default route uses it


def interfaces() -> List[Interface]:
    """Every address of every interface that is up, IPv4 first, in the kernel's order."""
    defaults = default_interfaces()
    addresses = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        flags: Dict[str, int] = {}
        rows: List[Tuple[str, str, int]] = []
        for label, name, address in _ipv4(probe):
            netmask = _ask(probe, SIOCGIFNETMASK, label)[20:24] or b"\xff" * 4
            rows.append((name, address, bin(int.from_bytes(netmask, "big")).count("1")))
        for words in _table("/proc/net/if_inet6"):
            if len(words) == 6:
                address = socket.inet_ntop(socket.AF_INET6, bytes.fromhex(words[0]))
                rows.append((words[5], address, int(words[2], 16)))
        for name, address, prefix in rows:
            if name not in flags:
                answer = _ask(probe, SIOCGIFFLAGS, name)
                flags[name] = int.from_bytes(answer[16:18], sys.byteorder)  # 0 if it is gone
            if flags[name] & IFF_UP:
                kind = _kind(name, flags[name], name in defaults)
                addresses.append(Interface(name, address, prefix, kind, name in defaults))
    return addresses


def _ipv4(probe: socket.socket) -> List[Tuple[str, str, str]]:
    """(label, interface, address). A second address of an interface may have its own label, such as
    eth0:1."""
    size = 64 * ENTRY
    while True:
        buffer = array.array("B", bytes(size))
        request = struct.pack("iL", size, buffer.buffer_info()[0])
        length = struct.unpack("iL", fcntl.ioctl(probe.fileno(), SIOCGIFCONF, request))[0]
        if length < size:
            break
        size *= 2
    data = buffer.tobytes()
    addresses = []
    for begin in range(0, length, ENTRY):
        label = data[begin : begin + 16].split(b"\0", 1)[0].decode("utf-8", "replace")
        address = socket.inet_ntoa(data[begin + 20 : begin + 24])
        addresses.append((label, label.partition(":")[0], address))
    return addresses


def _ask(probe: socket.socket, request: int, name: str) -> bytes:
    with contextlib.suppress(OSError):  # it is gone
        return fcntl.ioctl(probe.fileno(), request, struct.pack("256s", os.fsencode(name)[:15]))
    return b""


def default_interfaces() -> List[str]:
    """The interfaces of IPv4 default routes, the best metric first."""
    rows = [words for words in _table("/proc/net/route") if len(words) > 7]
    ways = sorted((int(words[6]), words[0]) for words in rows if words[1] == words[7] == "00000000")
    return [name for _, name in ways]


def _table(path: str) -> List[List[str]]:
    with contextlib.suppress(OSError), open(path, encoding="ascii", errors="replace") as stream:
        return [line.split() for line in stream]
    return []


def _kind(name: str, flags: int, is_default: bool) -> str:
    if flags & IFF_LOOPBACK:
        return "loopback"
    bridge = os.path.isdir(os.path.join("/sys/class/net", name, "bridge"))
    if (bridge or INNER.match(name)) and not is_default:
        # a bridge may be this server's way out
        return "inner"
    return "tunnel" if flags & IFF_POINTOPOINT else "ethernet"


def candidates(interfaces: List[Interface]) -> List[Interface]:
    """Addresses at which another server may reach this one, the most likely first. No loopback, no
    containers, and nothing that is valid on one link only. Wires come before tunnels, then the
    default route's interface, then IPv4."""
    order = {"ethernet": 0, "tunnel": 1}
    usable = [
        interface
        for interface in interfaces
        if interface.kind in order and not LINK_LOCAL.match(interface.address)
    ]
    return sorted(
        usable,
        key=lambda interface: (
            order[interface.kind],
            not interface.default,
            ":" in interface.address,
        ),
    )


def interface_of(address: str, interfaces: List[Interface]) -> str:
    """The name of the interface with this address, "" if there is none. 127.0.0.0/8 belongs to the
    loopback interface."""
    address = address.partition("%")[0].replace("::ffff:", "")
    for interface in interfaces:
        if interface.address == address or (
            interface.kind == "loopback" and address.startswith("127.")
        ):
            return interface.name
    return ""


def local_address(address: str) -> str:
    """Our own address on the way to `address` by the current routes, "" if there is no way. Sends
    nothing."""
    with contextlib.suppress(OSError):
        family, _, _, _, target = socket.getaddrinfo(address, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    return ""


def reachable(address: str, port: int, timeout: float = 3.0) -> str:
    """Why there is no TCP connection to `address` within `timeout` seconds. "" if there is one."""
    try:
        socket.create_connection((address, port), timeout).close()
    except OSError as error:
        return failure_text(error, timeout)
    return ""


def listener(port: int) -> socket.socket:
    """Listens on a port, 0 for any, at all addresses. Raises OSError."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


def failure_text(error: OSError, timeout: float) -> str:
    """Why a connection with this time limit failed."""
    if isinstance(error, socket.timeout):
        return "no answer within {:g} s".format(timeout)
    return (error.strerror or str(error)).lower()


def ephemeral_ports() -> Tuple[int, int]:
    """(first, last) port that the kernel assigns to outgoing connections."""
    for words in _table("/proc/sys/net/ipv4/ip_local_port_range"):
        if len(words) == 2:
            return int(words[0]), int(words[1])
    return EPHEMERAL
