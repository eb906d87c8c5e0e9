"""The servers of an attempt meet before the user's program starts. At which address do they reach
rank 0, and through which interface?

Every server tries, and nobody guesses. They meet on the port that the program's own rendezvous will
use. If they do not meet, a user can act on the message. This process then becomes the program.
"""

import queue
import socket
import threading
import time
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from gpq_agent import wire
from gpq_agent.node.host import login, network

PATIENCE = 120.0  # seconds until every server must have appeared, because an order may be late
KNOCK = 3.0  # seconds that an address has to answer
AGAIN = 0.2
LONGEST_LINE = 1 << 16


class RendezvousFailed(Exception):
    """They did not meet. `kind`: "port" if it is taken, otherwise "network"."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Rendezvous(NamedTuple):
    """What this server has to use."""

    address: str  # of rank 0
    interface: str  # of this server, "" if unknown


class RendezvousPeer(NamedTuple):
    """A server that has connected, and its open connection."""

    line: socket.socket
    reached: List[str]  # addresses at which it reached this server
    port: int  # where it listens itself, to check the way back


def meet(order: wire.StartOrder, patience: float = PATIENCE) -> Rendezvous:
    """Wait until all servers of the attempt agree. Raises RendezvousFailed."""
    token = "{}:{}".format(order.store, wire.attempt_key(order.job, order.attempt))
    deadline = time.monotonic() + patience
    address, own_address = (
        _host(order, token, deadline) if order.node_rank == 0 else _visit(order, token, deadline)
    )
    return Rendezvous(
        address, order.interface or network.interface_of(own_address, network.interfaces())
    )


def exports(meeting: Rendezvous, port: int, env: Dict[str, str]) -> Dict[str, str]:
    """Add what the program's rendezvous and its collectives need to `env`. For the collectives,
    values of the user stay."""
    variables = dict(env, MASTER_ADDR=meeting.address, MASTER_PORT=str(port))
    if not meeting.interface:
        return variables
    exact_name = "=" + meeting.interface  # plain eth1 would also match eth10
    return login.with_defaults(
        variables, {"GLOO_SOCKET_IFNAME": meeting.interface, "NCCL_SOCKET_IFNAME": exact_name}
    )


def _name(order: wire.StartOrder, rank: int) -> str:
    return order.servers[rank] if rank < len(order.servers) else "server {}".format(rank)


# -- rank 0


def _host(order: wire.StartOrder, token: str, deadline: float) -> Tuple[str, str]:
    """(address that all reach, our own address on the connection to the first of them)."""
    with _listen(order.port) as server:
        try:
            guests = _gather(order, server, token, deadline)
            address = _agree(order, guests)
            own_address = str(guests[min(guests)].line.getsockname()[0])
            _tell(guests, {"address": address})
            return address, own_address
        finally:
            server.shutdown(socket.SHUT_RDWR)  # a thread that waits in accept() would keep it open


def _gather(
    order: wire.StartOrder, server: socket.socket, token: str, deadline: float
) -> Dict[int, RendezvousPeer]:
    """All other servers, by node rank."""
    guests: Dict[int, RendezvousPeer] = {}
    arrivals: "queue.Queue[Tuple[int, RendezvousPeer]]" = queue.Queue()
    threading.Thread(target=_open_door, args=(server, token, arrivals), daemon=True).start()
    while len(guests) < order.node_count - 1:
        try:
            # Longer than the guests wait, because they know better what keeps them away.
            rank, guest = arrivals.get(timeout=max(deadline + 2 * KNOCK - time.monotonic(), 0.01))
        except queue.Empty:
            missing = ", ".join(
                _name(order, rank) for rank in range(1, order.node_count) if rank not in guests
            )
            problem = "port {} of {} heard nothing from {}".format(
                order.port, _name(order, 0), missing
            )
            raise RendezvousFailed("network", problem) from None
        guests[rank] = guest
    return guests


def _listen(port: int) -> socket.socket:
    try:
        if socket.has_dualstack_ipv6():
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
        return socket.create_server(("", port))
    except OSError as error:
        raise RendezvousFailed(
            "port", "port {} was taken: {}".format(port, error.strerror)
        ) from error


def _open_door(
    server: socket.socket, token: str, arrivals: "queue.Queue[Tuple[int, RendezvousPeer]]"
) -> None:
    while True:
        try:
            line, _ = server.accept()
        except OSError:  # closed, because all have met
            return
        threading.Thread(target=_welcome, args=(line, token, arrivals), daemon=True).start()


def _welcome(
    line: socket.socket, token: str, arrivals: "queue.Queue[Tuple[int, RendezvousPeer]]"
) -> None:
    """Foreign processes, and guests that only knock, leave no trace."""
    try:
        line.settimeout(KNOCK)
        if (_read(line) or {}).get("token") == token:
            line.sendall(wire.encode({"token": token}))
            line.settimeout(4 * KNOCK)  # it now tries its other addresses
            introduction = _read(line)
            if introduction is not None:
                arrivals.put(
                    (
                        int(introduction["node"]),
                        RendezvousPeer(
                            line, list(introduction["reached"]), int(introduction["port"])
                        ),
                    )
                )
                return
    except (OSError, ValueError, KeyError, TypeError):
        pass
    line.close()


def _agree(order: wire.StartOrder, guests: Dict[int, RendezvousPeer]) -> str:
    """An address that all reach. Tells the others before it raises RendezvousFailed."""
    problem = ""
    common = [
        candidate
        for candidate in order.masters
        if all(candidate in guest.reached for guest in guests.values())
    ]
    if not common:
        ways = [
            "{} by {}".format(_name(order, rank), ", ".join(guests[rank].reached))
            for rank in sorted(guests)
        ]
        problem = "no address of {} is reachable from all others: {}".format(
            _name(order, 0), "; ".join(ways)
        )
    for rank in sorted(guests):
        address = str(guests[rank].line.getpeername()[0]).replace("::ffff:", "")
        silence = network.reachable(address, guests[rank].port, KNOCK)
        if silence and not problem:
            guest, host = _name(order, rank), _name(order, 0)
            problem = "{} reaches {}, but not the other way round: {} port {}: {}".format(
                guest, host, address, guests[rank].port, silence
            )
            problem += ". Is there a firewall?"
    if problem:
        _tell(guests, {"error": problem})
        raise RendezvousFailed("network", problem)
    return common[0]


def _tell(guests: Dict[int, RendezvousPeer], answer: Dict[str, Any]) -> None:
    """Then wait until they have closed the connection, because whoever closes first keeps the port
    busy for a while."""
    for guest in guests.values():
        try:
            guest.line.sendall(wire.encode(answer))
        except OSError:  # the program's own rendezvous will miss it
            continue
    for guest in guests.values():
        try:
            guest.line.settimeout(1.0)
            guest.line.recv(1)
        except OSError:
            pass
        guest.line.close()


# -- the others


def _visit(order: wire.StartOrder, token: str, deadline: float) -> Tuple[str, str]:
    """(address of rank 0, our own on the way there)."""
    while True:
        lines: Dict[str, socket.socket] = {}
        problems: Dict[str, str] = {}
        for address in order.masters:
            line, problem = _knock(address, order.port, token)
            if line is not None:
                lines[address] = line
                if order.node_count == 2:
                    break  # there is no third server that must reach it too
            else:
                problems[address] = problem
        try:
            agreement = _introduce(order, lines, deadline)
        finally:
            for line in lines.values():
                line.close()
        if agreement is not None:
            return agreement
        if time.monotonic() > deadline:
            attempts = (
                "; ".join("{}: {}".format(address, problems[address]) for address in problems)
                or "it closed the connection"
            )
            host = _name(order, 0)
            raise RendezvousFailed(
                "network", "{} is not reachable at port {}: {}".format(host, order.port, attempts)
            )
        time.sleep(AGAIN)


def _knock(address: str, port: int, token: str) -> Tuple[Optional[socket.socket], str]:
    """A connection to a server that knows the token, or why there is none."""
    try:
        line = socket.create_connection((address, port), KNOCK)
    except socket.timeout:
        return None, "no answer within {:g} s".format(KNOCK)
    except OSError as error:
        return None, (error.strerror or str(error)).lower()
    try:
        line.sendall(wire.encode({"token": token}))
        if (_read(line) or {}).get("token") == token:
            return line, ""
    except (OSError, ValueError):
        pass
    line.close()
    return None, "another program answers there"


def _introduce(
    order: wire.StartOrder, lines: Dict[str, socket.socket], deadline: float
) -> Optional[Tuple[str, str]]:
    """Report what was reached, and receive what all use. None if rank 0 closed the connection.
    Raises RendezvousFailed with its reason."""
    if not lines:
        return None
    line = next(iter(lines.values()))
    own_address = str(line.getsockname()[0])
    family = socket.AF_INET6 if ":" in own_address else socket.AF_INET
    with socket.create_server((own_address, 0), family=family) as return_server:
        introduction = {
            "node": order.node_rank,
            "reached": list(lines),
            "port": return_server.getsockname()[1],
        }
        try:
            line.sendall(wire.encode(introduction))
            line.settimeout(max(deadline + 4 * KNOCK - time.monotonic(), KNOCK))
            answer = _read(line)
        except (OSError, ValueError):
            return None
    if answer is None:
        return None
    if "error" in answer:
        raise RendezvousFailed("network", str(answer["error"]))
    return str(answer["address"]), own_address


def _read(line: socket.socket) -> Optional[Dict[str, Any]]:
    """One message, None at the end of the stream. Raises OSError or ValueError."""
    data = b""
    while not data.endswith(b"\n"):
        part = line.recv(4096)
        if not part:
            return None
        data += part
        if len(data) > LONGEST_LINE:
            raise ValueError("the line is too long")
    return wire.decode(data)
