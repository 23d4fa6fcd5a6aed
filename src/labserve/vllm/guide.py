"""A scheduler of the labs' kind inside vLLM: its `line` orders vLLM's queue, and its `victim` is preempted first.

vLLM admits the first requests of its queue, and preempts the last of its running requests
(vllm/v1/core/sched/scheduler.py). So a guide puts both in order before each step, and vLLM decides as ever.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from labsched.counting import CountingEngine
from labsched.features import InForce
from labsched.own import FILE, class_beside, names_written, scheduler_beside
from labsched.policy import Policy
from labsched.request import Request
from labsched.scheduler import Scheduler
from labsched.step import Step
from labserve.vllm.settings import VllmSettings

NOT_ASKED = ("places", "reserve", "share")  # of the five questions
WHY = "vLLM asks a scheduler of the labs' kind for line and victim alone"


def guide_beside(folder: Path | None, settings: VllmSettings) -> Guide | None:
    """The guide of ``folder/scheduler.py``; None where there is none, or where it is a scheduler of vLLM's kind.

    Raises:
        ValueError: vLLM's own order is by priority, which leaves the file none to choose.
    """
    kind = class_beside(folder, Scheduler, object)
    if folder is None or kind is Scheduler or not issubclass(kind, Scheduler):
        return None
    if settings.arguments.get("scheduling_policy") == "priority":
        raise ValueError(f"scheduling: priority is vLLM's own order, and {FILE} has another one: leave one of them out")
    return Guide(scheduler_beside(folder), settings)


class Guide:
    """Asks a learner's scheduler about vLLM's requests."""

    def __init__(self, kind: type[Scheduler], settings: VllmSettings) -> None:
        engine = CountingEngine(settings.features.max_num_tokens)
        features, running = settings.features, settings.max_running
        self.own = kind(engine, settings.kv, Policy.MAX_UTILIZATION, running, False, features)
        written = names_written(kind)
        self.left_out = [name for name in NOT_ASKED if name in written]

    def in_force(self) -> list[InForce]:
        """The file's answers that vLLM does not ask for, by name."""
        return [InForce(f"{FILE}: {name}", "yours", "vLLM's own", WHY) for name in self.left_out]

    def arrived(self, request: Request) -> None:
        """A request has come to vLLM."""
        self.own.order.arrived(request, self.own.waiting)
        self.own.waiting.append(request)

    def arrange(self, scheduler: Any, requests: Mapping[str, Request]) -> None:
        """Put vLLM's queue and its running requests in order for its next step; ``requests`` are by vLLM's id.

        The file is asked about them as the labs' scheduler has them: waiting in order of arrival, preempted requests
        before the others; running in order of admission. vLLM's are in the order of the last answers.
        """
        own, queue = self.own, scheduler.waiting
        waiting = [request for request in queue if request.request_id in requests]
        here = [requests[request.request_id] for request in waiting]
        known = [request for request in own.waiting if request in here]
        own.waiting = deque([*(request for request in here if request not in known), *known])
        runs = [requests[one.request_id] for one in scheduler.running if one.request_id in requests]
        known = [request for request in own.running if request in runs]
        admitted = own.running = [*known, *(request for request in runs if request not in known)]
        first = {request: place for place, request in enumerate(own.line())}
        in_line = sorted(waiting, key=lambda request: first[requests[request.request_id]])
        if in_line != waiting:
            queue.remove_requests(waiting)
            for request in in_line:
                queue.add_request(request)
        goes: dict[Request, int] = {}  # its place in the order of preemption
        own.running = list(admitted)
        while own.running:
            victim = own.victim()
            own.running.remove(victim)
            goes[victim] = len(goes)
        own.running = admitted
        scheduler.running.sort(key=lambda one: -goes.get(requests.get(one.request_id), -1))  # type: ignore[arg-type]

    def took(self, step: Step) -> None:
        """A step has ended: who joined in it, and what it made."""
        order, names = self.own.order, {request.name: request for request in step.requests}
        for name in step.joined:
            request = names[name]
            if request in self.own.waiting:
                self.own.waiting.remove(request)
            order.joined(request, self.own.waiting)
        for request, tokens in step.produced:
            order.made(request, len(tokens))

    def ended(self, request: Request) -> None:
        """A request has left vLLM."""
        self.own.order.ended(request)
