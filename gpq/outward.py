"""What config.toml says of the world outside: where metrics are served. Checks the words; opens and sends nothing."""

from __future__ import annotations

from typing import NamedTuple

from gpq.errors import UsageError

ADDRESS_HINT = "a port such as 9464, or with an address of this machine: 127.0.0.1:9464, [::1]:9464"
OPEN = "whoever reaches it can read the names of users, servers and jobs"


class Address(NamedTuple):
    """Where the daemon listens: an address in digits, so that no name has to be looked up."""

    host: str
    port: int

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/metrics"

    @property
    def private(self) -> bool:
        """Do only programs of this machine reach it?"""
        import ipaddress  # what does not listen pays for no such thing

        return ipaddress.ip_address(self.host).is_loopback


def address(text: str) -> Address:
    """``[ADDR:]PORT``; loopback where no address is named. Raises UsageError."""
    import ipaddress

    host, colon, port = text.strip().rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    host = "127.0.0.1" if host == "localhost" or not colon else host
    if not (port.isascii() and port.isdecimal() and 1 <= int(port) <= 65535):
        raise UsageError(f"`{text}` is no port or address with a port", ADDRESS_HINT)
    try:
        return Address(str(ipaddress.ip_address(host)), int(port))
    except ValueError:
        raise UsageError(f"`{host}` is no IP address", ADDRESS_HINT) from None
