"""The files of attempts in the spool: read, and set aside where they are damaged."""

import contextlib
import os
from typing import Any, Dict, List, Optional

from gpq_agent import records, wire
from gpq_agent.node.host.errors import SpoolError
from gpq_agent.node.shim import start_order
from gpq_agent.node.spool.shapes import SHAPES
from gpq_agent.node.spool.spool import Spool


class AttemptFiles:
    """Those of all attempts of `place`, by the attempt's key."""

    def __init__(self, place: Spool) -> None:
        self.spool = place
        self._orders: Dict[str, wire.StartOrder] = {}
        self._damage: Dict[str, List[str]] = {}  # what of them was set aside, in words

    def path(self, key: str, name: str) -> str:
        """Of a file of the attempt."""
        return os.path.join(self.spool.folder(key), name)

    def read(self, key: str, name: str) -> Optional[Dict[str, Any]]:
        """A file of the attempt, None where there is none, or none that can be taken for it: that
        one is set aside."""
        path = self.path(key, name)
        try:
            shape = SHAPES.get(name)
            return records.read_object(path) if shape is None else records.read_shape(shape, path)
        except records.Damaged as damage:
            self.note(key, records.put_away(damage))
        return self._bare_order(key)._asdict() if name == wire.ORDER else None

    def order(self, key: str) -> Optional[wire.StartOrder]:
        """The order of an attempt, None when there is no such attempt."""
        if key not in self._orders:
            content = self.read(key, wire.ORDER)
            if content is None:
                return None
            try:
                self._orders[key] = start_order.parse_order(content)
            except SpoolError as error:
                damage = records.Damaged(self.path(key, wire.ORDER), error.message)
                self.note(key, records.put_away(damage))
                self._orders[key] = self._bare_order(key)
        return self._orders[key]

    def _bare_order(self, key: str) -> wire.StartOrder:
        """In place of one that cannot be read: the attempt must not be taken for one that never
        was. What devices it has, their locks tell, and the daemon knows."""
        job, attempt = wire.parse_attempt_key(key)
        order = wire.StartOrder(job, attempt, ["?"], "/", {}, ["?"], "black-box")
        with contextlib.suppress(OSError):  # else this is found out once more
            wire.write_json(self.path(key, wire.ORDER), order._asdict())
        return order

    def restore(self, key: str) -> None:
        """The folder of an attempt that lives was removed, by the job itself perhaps. It gets one
        again, to be stopped by."""
        folder = self.spool.folder(key)
        with contextlib.suppress(OSError):
            os.mkdir(folder, 0o700)
        order = self._orders.get(key)
        if order is None:
            self._orders[key] = self._bare_order(key)
        else:
            wire.write_json(self.path(key, wire.ORDER), order._asdict())
        self._damage.setdefault(key, []).append("its folder {} was removed".format(folder))

    def damage(self, key: str) -> List[str]:
        """What could not be taken of the attempt's files, a line each."""
        return list(self._damage.get(key, []))

    def note(self, key: str, line: str) -> bool:
        """Add a line to the damage. Is it a new one?"""
        lines = self._damage.setdefault(key, [])
        if line in lines:
            return False
        lines.append(line)
        return True

    def forget(self, key: str) -> None:
        """Keep nothing of the attempt here."""
        self._orders.pop(key, None)
        self._damage.pop(key, None)
