"""The decisions of Triton's sequence batcher, from the verbose log (``--log-verbose=1``) of Triton 2.51.

The log slows the server down, so it is read from a run of its own, and nothing is timed in that run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from labkit.errors import LabError
from labsched.files import open_to_read

_STAMP = re.compile(r"^[IWE](?P<day>\d{4}) (?P<clock>\d\d:\d\d:\d\d\.\d{6}) ")
_PLACE = r"batcher (?P<instance>\S+), (?:sequence )?slot (?P<slot>\d+)"
_TEXTS = (
    ("enter", re.compile(rf"Enqueuing CORRID (?P<id>.+) into {_PLACE}: (?P<model>\S+?)\"?$")),
    ("enter", re.compile(rf"CORRID (?P<id>.+) reusing {_PLACE}: (?P<model>\S+?)\"?$")),
    ("wait", re.compile(r"Enqueuing CORRID (?P<id>.+) into (?:new|existing) backlog: (?P<model>\S+?)\"?$")),
    ("end", re.compile(rf"(?:\b[Ee]nd sequence|Reaper: force-ending) CORRID (?P<id>.+) in {_PLACE}")),
    ("execute", re.compile(r"model (?P<model>\S+), instance (?P<instance>\S+), executing (?P<size>\d+) requests")),
)


@dataclass(frozen=True)
class SlotEvent:
    """One line of the log.

    ``kind`` is wait (a request joined the backlog), enter (a request came into a slot), end (of a sequence) or execute
    (``size`` requests, empty rows included). ``at`` is in seconds; only differences mean anything.
    """

    at: float
    kind: str
    instance: str = ""
    id: str = ""
    slot: int = -1
    size: int = 0


def read_slot_log(path: Path, model: str) -> list[SlotEvent]:
    """Every decision on the sequences of ``model``, in the order of the log.

    Raises:
        LabError: there is no such log, or it is not a verbose one.
    """
    try:
        with open_to_read(path) as stream:
            lines = stream.read().decode(errors="replace").splitlines()
    except OSError as error:
        raise LabError(f"{path} cannot be read", str(error), "--set log_verbose=true", code="log-unreadable") from error
    events = [event for line in lines if (event := parse_slot_event(line, model))]
    if not events:
        raise LabError(
            f"{path} has no line about sequences of {model}", "", "--set log_verbose=true", code="slot-lines-none"
        )
    return events


def parse_slot_event(line: str, model: str) -> SlotEvent | None:
    """One line, if it is about a sequence or an execution of ``model``."""
    stamp = _STAMP.match(line)
    if not stamp:
        return None
    for kind, pattern in _TEXTS:
        if match := pattern.search(line):
            fields = match.groupdict()
            instance = fields.get("instance") or ""
            owner = fields.get("model") or re.sub(r"_\d+_\d+$", "", instance)
            if owner != model:
                return None
            # The log has no year: 2000 is a leap year, so every date is valid. It has no time zone either, and UTC has
            # no hour that is left out.
            at = datetime.strptime(f"2000{stamp['day']} {stamp['clock']}", "%Y%m%d %H:%M:%S.%f").replace(tzinfo=UTC)
            return SlotEvent(
                at=at.timestamp(),
                kind=kind,
                instance=instance.removeprefix(f"{model}_"),
                id=fields.get("id") or "",
                slot=int(fields.get("slot") or -1),
                size=int(fields.get("size") or 0),
            )
    return None
