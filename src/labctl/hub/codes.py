"""Codes by which learners enter, and what is remembered of their browsers. Only hashes are kept of either."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from labkit import nofollow
from labkit.disk import atomic_write
from labkit.errors import LabError

LETTERS, LENGTH = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789", 10  # 50 bits
INSTRUCTOR = 0  # in the place of a learner's number
WRONG, WINDOW_S = 20, 60.0  # attempts of one address that may fail in so many seconds; ten times as many of all
VISIT_S = 12 * 3600.0
CHANGED = "the codes cannot be read"


@dataclass(frozen=True)
class Codes:
    """The hash of each code, by the learner's number."""

    salt: bytes
    hashes: dict[int, bytes]

    @classmethod
    def make(cls, learners: int) -> tuple[Codes, dict[int, str]]:
        """New codes for the instructor and so many learners, and the codes themselves, which nobody keeps."""
        codes = {
            number: "".join(secrets.choice(LETTERS) for _ in range(LENGTH))
            for number in range(INSTRUCTOR, learners + 1)
        }
        salt = secrets.token_bytes(16)
        return cls(salt, {number: _hash(code, salt) for number, code in codes.items()}), codes

    def owner(self, code: str) -> int | None:
        """Whose code it is. Every hash is compared, whichever it is."""
        plain = "".join(letter for letter in code.upper() if letter in LETTERS)[: 2 * LENGTH]
        found, given = None, _hash(plain, self.salt)
        for number, known in self.hashes.items():
            if hmac.compare_digest(given, known):
                found = number
        return found

    def save(self, path: Path) -> None:
        hashes = {str(number): known.hex() for number, known in self.hashes.items()}
        atomic_write(path, json.dumps({"salt": self.salt.hex(), "hashes": hashes}), mode=0o600)

    @classmethod
    def read(cls, path: Path) -> Codes | None:
        """Those of an earlier hub; None where there are none. Raises LabError: the file is damaged."""
        try:
            data = nofollow.read_object(path)
            hashes = {int(number): bytes.fromhex(known) for number, known in data["hashes"].items()}
            return cls(bytes.fromhex(data["salt"]), hashes)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise LabError(CHANGED, str(error), "labctl hub up --new-codes") from error


def _hash(code: str, salt: bytes) -> bytes:
    return hashlib.scrypt(code.encode(), salt=salt, n=2**13, r=8, p=1, dklen=32)


class Attempts:
    """Counts the attempts that failed, by the address that they came from."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now, self._failed = now, dict[str, deque[float]]()

    def open(self, address: str) -> bool:
        """Whether the address may try again."""
        since = self._now() - WINDOW_S
        for name, times in list(self._failed.items()):
            while times and times[0] < since:
                times.popleft()
            if not times:
                del self._failed[name]
        every = sum(len(times) for times in self._failed.values())
        return len(self._failed.get(address, ())) < WRONG and every < 10 * WRONG

    def failed(self, address: str) -> None:
        self._failed.setdefault(address, deque()).append(self._now())


class Visits:
    """The browsers that have entered: a random token in a cookie, of which only the hash is kept, in memory."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now, self._visits, self._lock = now, dict[bytes, tuple[int, float]](), threading.Lock()

    def begin(self, number: int) -> str:
        token = secrets.token_urlsafe(32)
        with self._lock:
            self._visits = {key: visit for key, visit in self._visits.items() if visit[1] > self._now()}
            self._visits[_key(token)] = number, self._now() + VISIT_S
        return token

    def owner(self, token: str) -> int | None:
        """Whose browser holds this token."""
        number, until = self._visits.get(_key(token), (None, 0.0))
        return number if until > self._now() else None

    def end(self, token: str) -> None:
        with self._lock:
            self._visits.pop(_key(token), None)


def _key(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
