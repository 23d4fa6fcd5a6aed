"""my/scheduler.py inside vLLM: its queue in the order of `line`, its running requests with the victim last."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from labsched.features import Features
from labsched.kv_budget import KVBudget
from labsched.request import Request
from labsched.step import Step
from labserve.vllm.guide import Guide, guide_beside

HEAD = "from labsched import order, scheduler\n\n\nclass Scheduler(scheduler.Scheduler):\n"
LONGEST_GOES = (
    f"{HEAD}    def victim(self):\n        return max(self.running, key=lambda request: len(request.prompt))\n"
)
LAST_FIRST = f"{HEAD}    def line(self):\n        return list(reversed(self.waiting))\n"
FAIR = f"""{HEAD}    def __init__(self, *args, **more):
        super().__init__(*args, **more)
        self.order = Fair()


class Fair(order.Order):
    def __init__(self):
        self.served = {{}}

    def line(self, waiting):
        return sorted(waiting, key=lambda request: self.served.get(request.tenant, 0))

    def joined(self, request, waiting):
        self.served[request.tenant] = self.served.get(request.tenant, 0) + len(request.prompt)
"""


class Queue(deque[Any]):
    """vLLM's `FCFSRequestQueue`, as far as it is used."""

    def add_request(self, request: Any) -> None:
        self.append(request)

    def remove_requests(self, requests: Sequence[Any]) -> None:
        left = [request for request in self if request not in requests]
        self.clear()
        self.extend(left)


def guide(folder: Path, text: str, policy: str = "fcfs") -> Guide | None:
    (folder / "scheduler.py").write_text(text)
    settings: Any = SimpleNamespace(
        arguments={"scheduling_policy": policy}, features=Features(), kv=KVBudget(64, 32), max_running=4
    )
    return guide_beside(folder, settings)


def request(name: str, prompt: int, tenant: str = "") -> Request:
    return Request(name, [0] * prompt, 4, handle=name, tenant=tenant)


def arranged(own: Guide, waiting: Sequence[Request], running: Sequence[Request] = ()) -> tuple[str, str]:
    """The names of vLLM's waiting and running requests, as they stand before its next step."""
    theirs: Any = SimpleNamespace(
        waiting=Queue(SimpleNamespace(request_id=each.handle) for each in waiting),
        running=[SimpleNamespace(request_id=each.handle) for each in running],
    )
    own.arrange(theirs, {each.handle: each for each in (*waiting, *running)})
    names = ["".join(each.request_id for each in queue) for queue in (theirs.waiting, theirs.running)]
    return names[0], names[1]


def test_the_queue_stands_in_the_order_of_the_line(tmp_path: Path) -> None:
    own = guide(tmp_path, LAST_FIRST)
    assert own and arranged(own, [request(name, 2) for name in "abc"]) == ("cba", "")


def test_a_line_is_asked_about_the_order_of_arrival_whatever_order_the_queue_has_meanwhile(tmp_path: Path) -> None:
    own = guide(tmp_path, LAST_FIRST)
    assert own
    a, b, c, d = (request(name, 2) for name in "abcd")
    for each in (a, b, c):
        own.arrived(each)
    assert arranged(own, [a, b, c]) == ("cba", "")
    assert arranged(own, [c, b, a]) == ("cba", ""), "as it left the queue"
    own.arrived(d)
    assert arranged(own, [b, a, d], [c]) == ("dba", "c")
    assert arranged(own, [c, d, b, a]) == ("dbac", ""), "c was preempted: it stands before all, and so goes last"


def test_a_victim_is_asked_of_the_order_of_admission(tmp_path: Path) -> None:
    own = guide(tmp_path, f"{HEAD}    def victim(self):\n        return self.running[0]\n")
    running = [request(name, 2) for name in "abc"]
    assert own and arranged(own, [], running) == ("", "cba")
    assert arranged(own, [], running[::-1]) == ("", "cba"), "as it left the running requests"


def test_the_victim_stands_last_where_vllm_preempts(tmp_path: Path) -> None:
    own = guide(tmp_path, LONGEST_GOES)
    lengths = {"a": 9, "b": 1, "c": 5}
    assert own and arranged(own, [], [request(name, length) for name, length in lengths.items()]) == ("", "bca")


def test_a_file_without_an_answer_leaves_vllms_orders_as_they_are(tmp_path: Path) -> None:
    own = guide(tmp_path, f"{HEAD}    pass\n")
    assert own and not own.in_force()
    assert arranged(own, [request(name, 2) for name in "abc"], [request(name, 2) for name in "def"]) == ("abc", "def")


def test_an_order_hears_who_joined(tmp_path: Path) -> None:
    own = guide(tmp_path, FAIR)
    assert own
    flood, light = [request(name, 8, "flood") for name in "abc"], request("d", 2, "light")
    for each in (*flood, light):
        own.arrived(each)
    assert arranged(own, [*flood, light]) == ("abcd", "")
    own.took(Step(["a"], 0.0, phase="p", tokens=[8], joined=["a"], requests=[flood[0]], made=[0]))
    assert arranged(own, [*flood[1:], light], flood[:1]) == ("dbc", "a")


def test_answers_that_vllm_does_not_ask_for_are_named(tmp_path: Path) -> None:
    asked = "    @property\n    def places(self):\n        return 1\n\n    def reserve(self):\n        return 0\n"
    own = guide(tmp_path, f"{HEAD}{asked}")
    assert own and [row.name for row in own.in_force()] == ["scheduler.py: places", "scheduler.py: reserve"]


def test_a_scheduler_of_vllms_kind_is_no_guide_and_neither_is_none(tmp_path: Path) -> None:
    assert guide(tmp_path, "class Scheduler:\n    pass\n") is None
    (tmp_path / "scheduler.py").unlink()
    assert guide_beside(tmp_path, SimpleNamespace()) is guide_beside(None, SimpleNamespace()) is None  # type: ignore[arg-type]


def test_two_orders_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^scheduling: "):
        guide(tmp_path, LAST_FIRST, policy="priority")
