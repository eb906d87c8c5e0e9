"""Packs the texts of rows that no longer change. A text is stored as its difference from the first
text of its kind, its dictionary, which is stored once. For everything that holds a job's request,
that kind is a user's shell, so that a thousand jobs of a shell store its environment once.

In SQL, `plain(body)` is the text of a body, packed or not.
"""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
import zlib
from collections.abc import Callable
from functools import lru_cache

from gpq.core.model.jobs import JobSpec

NUMBER_BYTES = 3  # of a packed body: the number of its dictionary. The difference follows
WINDOW = 1 << 15  # bytes of a dictionary that zlib looks at
RAW = -15  # without a checksum, because each row has its own
PUT_DICTIONARY = "INSERT INTO dictionaries (id, key, body) VALUES (?, ?, ?)"


class Unpacker:
    """Reads packed bodies of one database. Gives the connection the function `plain`."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.dictionary = lru_cache(maxsize=64)(self._read)
        connection.create_function("plain", 1, self._plain, deterministic=True)

    def _read(self, number: int) -> bytes:
        query = "SELECT body FROM dictionaries WHERE id = ?"
        (body,) = self._connection.execute(query, (number,)).fetchone()
        return zlib.decompress(body)

    def _plain(self, body: str | bytes) -> str:
        if isinstance(body, str):
            return body  # it was not packed
        number = int.from_bytes(body[:NUMBER_BYTES], "big")
        unzip = zlib.decompressobj(RAW, zdict=self.dictionary(number))
        return unzip.decompress(body[NUMBER_BYTES:]).decode()


class Packer:
    """Packs for one writer. `new_rows` must be written with what was packed."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._dictionary = Unpacker(connection).dictionary
        self._numbers: dict[str, int] = dict(
            connection.execute("SELECT key, id FROM dictionaries ORDER BY id").fetchall()
        )
        self._new: dict[int, tuple[str, bytes]] = {}

    def pack(self, key: str, text: str, sample: Callable[[], str]) -> bytes:
        """`sample` makes the dictionary of a key from its first text on, and the successor of one
        that is damaged."""
        number = self._numbers.get(key)
        if number is None or not self._is_sound(number):
            number = self._numbers[key] = 1 + max(self._numbers.values(), default=0)
            self._new[number] = key, sample().encode()[-WINDOW:]
        dictionary = self._new[number][1] if number in self._new else self._dictionary(number)
        zipper = zlib.compressobj(wbits=RAW, zdict=dictionary)
        difference = zipper.compress(text.encode()) + zipper.flush()
        return number.to_bytes(NUMBER_BYTES, "big") + difference

    def _is_sound(self, number: int) -> bool:
        with contextlib.suppress(zlib.error, sqlite3.OperationalError, TypeError):
            return number in self._new or bool(self._dictionary(number))
        return False

    def new_rows(self) -> list[tuple[int, str, bytes]]:
        """Rows for `PUT_DICTIONARY`."""
        return [(number, key, zlib.compress(text)) for number, (key, text) in self._new.items()]

    def forget_new(self) -> None:
        """The last `new_rows` are durable."""
        self._new.clear()


def shell(spec: JobSpec) -> str:
    """The same for all jobs of a shell, and most often for those of a user."""
    names = "\0".join([spec.user, *(name for name, _ in spec.env)])
    return hashlib.blake2b(names.encode(), digest_size=8).hexdigest()
