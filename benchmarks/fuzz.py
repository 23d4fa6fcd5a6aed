"""Hostile and careless requests to every model of every stack, and what became of them and of the server.

On loopback, without the requests that are known to end Triton 2.51 or to lose an answer there
(docs/operate/security.md); ``--killers`` sends the former too, one of each kind, to a server that is started again, and
``--shared-ids`` the latter; ``--expose`` sends everything to the guard, ``--replicas N`` to a balancer, which may
guard as well.
"""

from __future__ import annotations

import argparse
import re
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from benchmarks.hostile.draw import MAKERS, draw, killers
from benchmarks.hostile.models import Model
from benchmarks.hostile.send import ANSWERED, CANCELLED, CLOSED, PATIENCE_S, REFUSED, SILENCE, Outcome
from benchmarks.hostile.sent import Sent
from benchmarks.hostile.watch import Size, Watch
from labctl.labs.servers import ephemeral
from labctl.listener import Silent
from labctl.runtimes.local import LocalRuntime
from labctl.runtimes.record import Choices, UpOptions
from labctl.stack.session import Session
from labkit.tables import table

COUNT, SEED, CLIENTS, SUPERVISE, KEPT = 10_000, 12, 8, 20, 20
# What no client may read: Python's words, paths of sources, names of the python backend's shared memory.
INSIDE = re.compile(r"Traceback|\.py\b|site-packages|\b\w+Error\b|/dev/shm|labs-[0-9a-f]{12}")
COLUMNS = (
    "stack",
    "requests",
    "answered",
    "refused",
    "cancelled",
    "no answer",
    "deaths",
    "stubs dead",
    "slots leaked",
    "models disabled",
    "memory MB",
    "/dev/shm MB",
)


KINDS = ("kind", "what is sent", "requests", "answered", "refused", "closed", "cancelled", "no answer")
NOTHING = Size(0, 0)


@dataclass
class Found:
    """What one stack made of its requests. ``words``: where a refusal showed the inside of a model."""

    stack: str
    outcomes: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    silent: list[str] = field(default_factory=list)
    deaths: list[str] = field(default_factory=list)
    words: dict[str, str] = field(default_factory=dict)
    leaked: dict[str, int] = field(default_factory=dict)
    disabled: dict[str, str] = field(default_factory=dict)
    stubs_dead: int = 0
    before: Size = NOTHING
    after: Size = NOTHING

    def row(self) -> tuple[str, ...]:
        numbers = [
            sum(self.outcomes.values()),
            self.outcomes[ANSWERED],
            self.outcomes[REFUSED] + self.outcomes[CLOSED],
            self.outcomes[CANCELLED],
            self.outcomes[SILENCE],
            len(self.deaths),
            self.stubs_dead,
            sum(self.leaked.values()),
            len(self.disabled),
        ]
        sizes = [(self.before.memory, self.after.memory), (self.before.shm, self.after.shm)]
        return (self.stack, *map(str, numbers), *(f"{a / 2**20:.0f} to {b / 2**20:.0f}" for a, b in sizes))


def run(options: argparse.Namespace) -> dict[str, Any]:
    """All stacks one after the other; the table, and what went wrong with the request that did it."""
    session = Session.open(Silent())
    names = options.stacks or [name for lab in session.catalog.labs for name in lab.stacks]
    each, rest = divmod(options.count or COUNT, len(names))
    found, killed = [], {}
    for number, name in enumerate(names):
        lab, _ = session.catalog.stack(name)
        up = UpOptions(
            Choices(),
            "local",
            "auto",
            300.0,
            expose=options.expose,
            supervise=SUPERVISE,
            replicas=options.replicas,
            balance="l7" if options.replicas else "",
        )
        with ephemeral(session, lab, name, up) as handle:
            watch = Watch(LocalRuntime(session.workspace), handle.record, options.patience)
            count, losing = each + (number < rest), options.expose or options.shared_ids
            found.append(fuzz(watch, count, options.seed, deadly=options.expose, losing=losing))
            print(table([found[-1].row()], COLUMNS, right=range(1, len(COLUMNS))), flush=True)
            if options.killers:
                killed[name] = end(watch, options.seed)
    print("\n" + table([one.row() for one in found], COLUMNS, right=range(1, len(COLUMNS))))
    print("\n" + table(kinds(found), KINDS, right=range(2, len(KINDS))))
    for one in found:
        for what in (*one.deaths, *one.silent, *one.words.values(), one.leaked, one.disabled):
            if what:
                print(f"{one.stack}: {what}")
    for name, ends in killed.items():
        print("\n".join(f"{name}: known to end Triton 2.51: {how}" for how in ends))
    return {
        "count": options.count or COUNT,
        "seed": options.seed,
        "exposed": options.expose,
        "patience_s": options.patience,
        "replicas": options.replicas,
        "killed": killed,
        "stacks": [vars(one) | {"before": vars(one.before), "after": vars(one.after)} for one in found],
    }


def fuzz(watch: Watch, count: int, seed: int, *, deadly: bool = False, losing: bool = False) -> Found:
    """Send ``count`` requests, always the same for one seed.

    Args:
        deadly: also those that are known to end Triton 2.51.
        losing: also those that are known to lose an answer there.
    """
    record = watch.record
    models = [Model.of(record.endpoints.http, name) for name in record.models]
    found = Found(record.stack, before=watch.size())
    if ill := watch.disabled(models):
        raise RuntimeError(f"before anything was sent: {ill}")
    local, lock, under_way = threading.local(), threading.Lock(), set[str]()

    def one(number: int) -> None:
        sent = draw(f"{seed}-{record.stack}-{number}", models, deadly, losing)
        if not hasattr(local, "client"):
            local.client = watch.client()
        with lock:
            under_way.add(str(sent))
        outcome = local.client.send(sent)
        with lock:
            if outcome[0] == CLOSED and not watch.lives():
                found.deaths.append(f"{watch.died()}; under way: {' | '.join(under_way)}")
            under_way.discard(str(sent))
            note(found, sent, outcome)

    with ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(one, range(count)))
    found.leaked, found.disabled, found.stubs_dead = watch.leaked(models), watch.disabled(models), watch.dead_stubs()
    found.after = watch.size()
    return found


def kinds(found: Sequence[Found]) -> list[tuple[str, ...]]:
    """What was sent to all of them, by its kind, and what became of it."""
    counts = sum((one.kinds for one in found), Counter[str]())
    rows = []
    for make in MAKERS:
        told = [counts[f"{make.__name__}: {what}"] for what in (ANSWERED, REFUSED, CLOSED, CANCELLED, SILENCE)]
        rows.append((make.__name__, str(make.__doc__).splitlines()[0], *map(str, (sum(told), *told))))
    return rows


def note(found: Found, sent: Sent, outcome: Outcome) -> None:
    what, words = outcome
    found.outcomes[what] += 1
    found.kinds[f"{sent.kind}: {what}"] += 1
    if what == SILENCE:
        found.silent.append(f"no answer: {sent}")
    elif (match := INSIDE.search(words)) and len(found.words) < KEPT:
        found.words.setdefault(match[0], f"told a client {words[:300]!r} of {sent}")


def end(watch: Watch, seed: int) -> Sequence[str]:
    """One of each kind of the requests that are known to end Triton 2.51, and how it ended."""
    record = watch.record
    models = [Model.of(record.endpoints.http, name) for name in record.models]
    ends = []
    for sent in killers(f"{seed}-{record.stack}", models):
        client = watch.client()
        outcome, _ = client.send(sent)
        client.close()
        how = watch.died() if outcome == CLOSED and watch.dies(5) else outcome
        ends.append(f"{sent.kind} over {sent.protocol}: {how}")
    return ends


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=int, default=SEED, help="fuzz: of all requests")
    parser.add_argument("--stacks", nargs="+", metavar="STACK", help="fuzz: these stacks; default: all")
    parser.add_argument(
        "--killers", action="store_true", help="fuzz: also what is known to end Triton 2.51, at the end"
    )
    parser.add_argument(
        "--shared-ids", action="store_true", help="fuzz: also what is known to lose an answer in Triton 2.51"
    )
    parser.add_argument("--expose", action="store_true", help="fuzz: behind the guard, with all of these")
    parser.add_argument(
        "--patience",
        type=float,
        default=PATIENCE_S,
        metavar="S",
        help="fuzz: after so many seconds a request has no answer; a busy machine needs more than the usual 20",
    )
    parser.add_argument("--replicas", type=int, metavar="N", help="fuzz: so many servers, each request to any of them")
