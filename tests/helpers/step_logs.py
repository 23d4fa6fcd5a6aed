"""Step logs made up by a seed, with everything in them that a model may write; and what a timeline holds of one."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Line = dict[str, Any]
PIECES = ("a", " word", " ", "\n", "é", "🦊", "", "<b>")
REASONS = ("no slot", "no KV block", "batch closed")


def step(n: int, ids: list[str], **more: Any) -> Line:
    """The line of a step, half a second long, in which each request decodes a token."""
    each = {"batch": len(ids), "ids": ids, "rows": [*range(len(ids))], "phase": "d" * len(ids), "made": [1] * len(ids)}
    head = {"v": 2, "n": n, "t": 10.0 + n, "dur": 0.5, "model": "m", "instance": "0_0", "kind": "step"}
    return {**head, **each, **more}


def log(seed: int, steps: int) -> list[Line]:
    """Lines of several models in order of time, each of another kind."""
    chance = random.Random(seed)
    models: dict[tuple[str, str], Batch | Sequences | Plain] = {
        ("blocks", "0"): Batch(chance, {"model": "blocks", "instance": "0"}),
        ("blocks", "1"): Batch(chance, {"model": "blocks", "instance": "1"}),
        ("sequences", "0_0"): Sequences(chance, {"model": "sequences", "instance": "0_0"}),
        ("plain", "0"): Plain(chance, {"model": "plain", "instance": "0"}),
    }
    lines, now = [], 1000.0
    for _ in range(steps):
        now += chance.uniform(0.001, 0.3)
        line = models[chance.choice(list(models))].line()
        lines.append({"t": round(now, 6), "dur": round(chance.uniform(0.0005, 0.01), 6), **line})
    return lines


class Plain:
    """A log of version 1: names, and how many are new."""

    def __init__(self, chance: random.Random, head: Line) -> None:
        self.chance, self.head = chance, head
        self.names: list[str] = []
        self.count = 0

    def line(self) -> Line:
        self.names = [name for name in self.names if self.chance.random() < 0.8]
        new = self.chance.randint(0 if self.names else 1, 2)
        self.names += [str(self.count + n) for n in range(new)]
        self.count += new
        return {**self.head, "kind": "step", "batch": len(self.names), "ids": list(self.names), "prefill": new}


class Sequences:
    """Sequences that keep their seat between their requests; a name can be used again."""

    def __init__(self, chance: random.Random, head: Line) -> None:
        self.chance, self.head = chance, head
        self.seats = ["", "", "", ""]
        self.count = 0

    def line(self) -> Line:
        rows, starts, ends = [], [], []
        names = list(self.seats)
        for row, name in enumerate(names):
            if self.chance.random() < 0.5 and (name or self.chance.random() < 0.6):
                names[row] = name or next(str(n) for n in range(9) if str(n) not in names)
                rows.append(row)
                starts.append(int(not name))
                ends.append(int(self.chance.random() < 0.2))
        self.count += 1
        ids = [names[row] for row in rows]
        gone = {name: "client" for name, end in zip(ids, ends, strict=True) if end}
        self.seats = ["" if name in gone else name for name in names]
        return {
            **self.head,
            "v": 2,
            "n": self.count,
            "kind": "step",
            "batch": len(ids),
            "ids": ids,
            "rows": rows,
            "start": starts,
            "end": ends,
            "ended": gone,
            "slots": len(names),
        }


class Batch:
    """Slots, a KV cache, those who wait and why, evictions, texts, clients that leave between two steps."""

    SLOTS, BLOCKS = 4, 24

    def __init__(self, chance: random.Random, head: Line) -> None:
        self.chance, self.head = chance, {**head, "v": 2, "slots": self.SLOTS, "kv_blocks": self.BLOCKS}
        self.seats: list[str] = [""] * self.SLOTS
        self.held: dict[str, int] = {}
        self.texts: dict[str, str] = {}  # of each request, all that it got
        self.unwritten: set[str] = set()  # those who got some of it while no texts were written
        self.waiting: list[str] = []
        self.count = self.n = 0

    def line(self) -> Line:
        self.n += 1
        taken = [name for name in self.seats if name]
        if taken and self.chance.random() < 0.1:
            gone = {self.chance.choice(taken): "cancelled"}
            self._leave(gone)
            self._forget(*gone)
            return {
                **self.head,
                "n": self.n,
                "kind": "change",
                "batch": 0,
                "ids": [],
                "ended": gone,
                "seats": self.seats,
            }
        return {**self.head, "n": self.n, "kind": "step", **self._step()}

    def _step(self) -> Line:
        new = []
        if self.chance.random() < 0.4:
            self.count += 1
            new = [f"r{self.count % 30}"]
            self.waiting += [name for name in new if name not in (*self.seats, *self.waiting)]
        evicted = [name for name in self.seats if name and self.chance.random() < 0.03]
        self._leave(evicted)
        joined = []
        for row, name in enumerate(self.seats):
            if not name and self.waiting and self.chance.random() < 0.7:
                self.seats[row] = self.waiting.pop(0)
                joined.append(self.seats[row])
        self.waiting = evicted + self.waiting
        rows = [row for row, name in enumerate(self.seats) if name and self.chance.random() < 0.9]
        ids = [self.seats[row] for row in rows]
        self.held |= {name: self.held.get(name, 1) + self.chance.randint(0, 1) for name in ids}
        blocks = [self.held[name] for name in ids]
        texts = self._texts(ids)
        ended = {name: "length" for name in ids if self.chance.random() < 0.15}
        self._leave(ended)
        for name in ended:
            self._forget(name)
        whys = [self.chance.choice(REASONS) for _ in self.waiting]
        return {
            "batch": len(ids),
            "ids": ids,
            "rows": rows,
            "phase": "".join("p" if n in joined else "d" for n in ids),
            "tokens": [3] * len(ids),
            "made": [self.chance.randint(0, 2) for _ in ids],
            "blocks": blocks,
            **texts,
            "prompts": {name: f"prompt of {name}" for name in new},
            **({"waiting": list(self.waiting), "why": whys} if self.waiting else {}),
            "queue": len(self.waiting) + self.chance.choice((0, 0, 7)) * bool(self.waiting),
            "joined": joined,
            "evicted": evicted,
            "ended": ended,
            "seats": list(self.seats),
            "kv_blocks_used": sum(blocks),
        }

    def _texts(self, ids: list[str]) -> Line:
        """What each gets. Nobody watches now and then; whoever watches again is told what there was before, once."""
        pieces = [self.chance.choice(PIECES) for _ in ids]
        before = {name: self.texts[name] for name in ids if name in self.unwritten}
        self.texts |= {name: self.texts.get(name, "") + piece for name, piece in zip(ids, pieces, strict=True)}
        if self.n % 40 > 25:
            self.unwritten |= set(ids)
            return {}
        self.unwritten -= set(ids)
        return {"texts": pieces, "before": before}

    def _forget(self, name: str) -> None:
        self.texts.pop(name, None)
        self.unwritten.discard(name)

    def _leave(self, names: Any) -> None:
        self.seats = ["" if name in names else name for name in self.seats]
        self.held = {name: held for name, held in self.held.items() if name not in names}


def recorded(timeline: Path) -> dict[str, Any]:
    """What a ``timeline.html`` holds."""
    held = re.search(r'id="recording">(.*?)</script>', timeline.read_text(encoding="utf-8"), re.S)
    assert held, f"{timeline} holds no recording"
    document: dict[str, Any] = json.loads(held[1])
    return document


def each(lines: list[Line]) -> Iterator[tuple[tuple[str, str], Line]]:
    """Each line with its model and instance."""
    for line in lines:
        yield (line["model"], line["instance"]), line


def write_run(folder: Path) -> None:
    """A run's folder: request 1 makes 374 tokens, and request 2, which was sent meanwhile, waits for all of them."""
    names = ["1"] * 374 + ["2"] * 2
    last = {374: {"1": "length"}, 376: {"2": "length"}}
    lines = [
        {
            "t": 100 + n / 10,
            "dur": 0.1,
            "model": "m",
            "instance": "0",
            "kind": "step",
            "ids": [name],
            "made": [1],
            "n": n,
        }
        | ({"ended": last[n]} if n in last else {})
        for n, name in enumerate(names, start=1)
    ]
    (folder / "steps-a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    sent = [
        {"phase": "a", "id": "1", "label": "", "start": 99.9},
        {"phase": "a", "id": "2", "label": "", "start": 100.05},
    ]
    (folder / "requests.jsonl").write_text("".join(json.dumps(one) + "\n" for one in sent))
