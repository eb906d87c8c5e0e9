"""The servers of an attempt meet before the user's program starts. At which address do they reach
rank 0, and through which interface?

Every server tries, and nobody guesses. They meet on the port that the program's own rendezvous will
use. If they do not meet, a user can act on the message. This process then becomes the program.

Anybody can connect to that port. So each line is sealed with the secret of the attempt, which only
its start orders hold.
"""

import contextlib
import hmac
import json
import queue
import secrets
import socket
import threading
import time
from collections import deque
from typing import Any, Deque, Dict, List, NamedTuple, Optional, Tuple

from gpq_agent import wire
from gpq_agent.node.host import login, network

PATIENCE = 120.0  # seconds until every server must have appeared, because an order may be late
KNOCK = 3.0  # seconds that an address has to answer
AGAIN = 0.2
LONGEST_LINE = 1 << 16
MOST_STRANGERS = 64  # connections that have not proven that they know the secret


class RendezvousFailed(Exception):
    """They did not meet. `kind`: "port" if it is taken, otherwise "network"."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Rendezvous(NamedTuple):
    """What this server has to use."""

    address: str  # of rank 0
    interface: str  # of this server, "" if unknown


class Conversation:
    """Messages between two servers that know the secret of their attempt.

    Each side first sends a number that it draws. Every later line has a seal: the HMAC-SHA-256
    (RFC 2104) of both numbers, the sender, the place of the line and its text, with the secret as
    key. So no line of another conversation, and none of a stranger, is taken for one.
    """

    def __init__(self, line: socket.socket, secret: str, *, hosts: bool) -> None:
        self.socket = line
        self._stream = line.makefile("rb")
        self._secret = secret.encode()
        self._role, self._other_role = ("host", "guest") if hosts else ("guest", "host")
        self._numbers: List[str] = []  # of the host, of the guest
        self._places = {"host": 0, "guest": 0}

    def open(self) -> bool:
        """Whether the other side has proven that it knows the secret, too. Raises OSError or
        ValueError."""
        own_number = secrets.token_hex(32)
        self.socket.sendall(wire.encode({"number": own_number}))
        other_number = str((self._line() or {}).get("number"))
        host_first = self._role == "host"
        self._numbers = [own_number, other_number] if host_first else [other_number, own_number]
        self.send({})
        return self.read() is not None

    def send(self, message: Dict[str, Any]) -> None:
        """Raises OSError."""
        text = json.dumps(message)
        self.socket.sendall(wire.encode({"text": text, "seal": self._seal(self._role, text)}))

    def read(self) -> Optional[Dict[str, Any]]:
        """The next message, None at the end of the stream. Raises OSError, or ValueError for a line
        without a valid seal."""
        sealed = self._line()
        if sealed is None:
            return None
        text, seal = str(sealed.get("text")), str(sealed.get("seal"))
        if not hmac.compare_digest(seal.encode(), self._seal(self._other_role, text).encode()):
            raise ValueError("the seal is wrong")
        return wire.decode(text.encode())

    def close(self) -> None:
        self._stream.close()
        self.socket.close()

    def _line(self) -> Optional[Dict[str, Any]]:
        data = self._stream.readline(LONGEST_LINE)
        if not data:
            return None
        if not data.endswith(b"\n"):
            raise ValueError("the line is too long, or cut")
        return wire.decode(data)

    def _seal(self, sender: str, text: str) -> str:
        self._places[sender] += 1
        content = json.dumps([*self._numbers, sender, self._places[sender], text])
        return hmac.new(self._secret, content.encode(), "sha256").hexdigest()


class RendezvousPeer(NamedTuple):
    """A server that has connected, and the conversation with it."""

    conversation: Conversation
    reached: List[str]  # addresses at which it reached this server
    port: int  # where it listens itself, to check the way back


def meet(order: wire.StartOrder, patience: float = PATIENCE) -> Rendezvous:
    """Wait until all servers of the attempt agree. Raises RendezvousFailed."""
    deadline = time.monotonic() + patience
    address, own_address = (
        _host(order, deadline) if order.node_rank == 0 else _visit(order, deadline)
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


def _host(order: wire.StartOrder, deadline: float) -> Tuple[str, str]:
    """(address that all reach, our own address on the connection to the first of them)."""
    with _listen(order.port) as server:
        try:
            guests = _gather(order, server, deadline)
            address = _agree(order, guests)
            own_address = str(guests[min(guests)].conversation.socket.getsockname()[0])
            _tell(guests, {"address": address})
            return address, own_address
        finally:
            server.shutdown(socket.SHUT_RDWR)  # a thread that waits in accept() would keep it open


def _gather(
    order: wire.StartOrder, server: socket.socket, deadline: float
) -> Dict[int, RendezvousPeer]:
    """All other servers, by node rank."""
    guests: Dict[int, RendezvousPeer] = {}
    arrivals: "queue.Queue[Tuple[int, RendezvousPeer]]" = queue.Queue()
    threading.Thread(target=_open_door, args=(order, server, arrivals), daemon=True).start()
    while len(guests) < order.node_count - 1:
        try:
            # Longer than the guests wait, because they know better what keeps them away.
            rank, guest = arrivals.get(timeout=max(deadline + 2 * KNOCK - time.monotonic(), 0.01))
        except queue.Empty:
            missing = ", ".join(
                _name(order, rank) for rank in range(1, order.node_count) if rank not in guests
            )
            words = "port {} of {} heard nothing from {}"
            problem = words.format(order.port, _name(order, 0), missing)
            raise RendezvousFailed("network", problem) from None
        guests[rank] = guest
    return guests


def _listen(port: int) -> socket.socket:
    try:
        return network.listener(port)
    except OSError as error:
        hint = "port {} was taken: {}".format(port, error.strerror)
        raise RendezvousFailed("port", hint) from error


def _open_door(
    order: wire.StartOrder,
    server: socket.socket,
    arrivals: "queue.Queue[Tuple[int, RendezvousPeer]]",
) -> None:
    strangers: Deque[socket.socket] = deque()
    while True:
        try:
            line, _ = server.accept()
        except OSError:  # closed, because all have met
            return
        strangers.append(line)
        if len(strangers) > MOST_STRANGERS:
            # A server of ours proves itself long before so many others have come.
            with contextlib.suppress(OSError):
                strangers.popleft().shutdown(socket.SHUT_RDWR)
        threading.Thread(
            target=_welcome, args=(order, line, strangers, arrivals), daemon=True
        ).start()


def _welcome(
    order: wire.StartOrder,
    line: socket.socket,
    strangers: "Deque[socket.socket]",
    arrivals: "queue.Queue[Tuple[int, RendezvousPeer]]",
) -> None:
    """Foreign processes, and guests that only knock, leave no trace."""
    guest = Conversation(line, order.secret, hosts=True)
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        line.settimeout(KNOCK)
        is_known = guest.open()
        strangers.remove(line)
        line.settimeout(4 * KNOCK)  # it now tries its other addresses
        introduction = guest.read() if is_known else None
        if introduction is not None:
            rank, port = int(introduction["node"]), int(introduction["port"])
            if 0 < rank < order.node_count and 0 < port < 65536:
                arrivals.put((rank, RendezvousPeer(guest, list(introduction["reached"]), port)))
                return
    with contextlib.suppress(ValueError):
        strangers.remove(line)
    guest.close()


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
        address = str(guests[rank].conversation.socket.getpeername()[0]).replace("::ffff:", "")
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
        with contextlib.suppress(OSError):  # the program's own rendezvous will miss it
            guest.conversation.send(answer)
    for guest in guests.values():
        with contextlib.suppress(OSError):
            guest.conversation.socket.settimeout(1.0)
            guest.conversation.socket.recv(1)
        guest.conversation.close()


# -- the others


def _visit(order: wire.StartOrder, deadline: float) -> Tuple[str, str]:
    """(address of rank 0, our own on the way there)."""
    while True:
        lines: Dict[str, Conversation] = {}
        problems: Dict[str, str] = {}
        for address in order.masters:
            line, problem = _knock(address, order)
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
            hint = "{} is not reachable at port {}: {}".format(host, order.port, attempts)
            raise RendezvousFailed("network", hint)
        time.sleep(AGAIN)


def _knock(address: str, order: wire.StartOrder) -> Tuple[Optional[Conversation], str]:
    """A conversation with a server that knows the secret, or why there is none."""
    try:
        line = socket.create_connection((address, order.port), KNOCK)
    except OSError as error:
        return None, network.failure_text(error, KNOCK)
    host = Conversation(line, order.secret, hosts=False)
    with contextlib.suppress(OSError, ValueError):
        if host.open():
            return host, ""
    host.close()
    return None, "another program answers there"


def _introduce(
    order: wire.StartOrder, lines: Dict[str, Conversation], deadline: float
) -> Optional[Tuple[str, str]]:
    """Report what was reached, and receive what all use. None if rank 0 closed the connection.
    Raises RendezvousFailed with its reason."""
    if not lines:
        return None
    host = next(iter(lines.values()))
    own_address = str(host.socket.getsockname()[0])
    family = socket.AF_INET6 if ":" in own_address else socket.AF_INET
    with socket.create_server((own_address, 0), family=family) as return_server:
        introduction = {
            "node": order.node_rank,
            "reached": list(lines),
            "port": return_server.getsockname()[1],
        }
        try:
            host.send(introduction)
            host.socket.settimeout(max(deadline + 4 * KNOCK - time.monotonic(), KNOCK))
            answer = host.read()
        except (OSError, ValueError):
            return None
    if answer is None:
        return None
    if "error" in answer:
        raise RendezvousFailed("network", str(answer["error"]))
    if answer.get("address") not in order.masters:
        words = "{} names an address that is not its own: {!r}"
        problem = words.format(_name(order, 0), answer.get("address"))
        raise RendezvousFailed("network", problem)
    return str(answer["address"]), own_address
