"""The page of a stack that is up, or of a run that is over."""

from __future__ import annotations

from pathlib import Path

from labctl.manifest.schema import Lab
from labctl.pages import address
from labctl.pages.live import replay
from labctl.pages.live.asking import Asker
from labctl.pages.live.hub import Hub
from labctl.pages.live.lines import clock_of
from labctl.pages.live.page import document
from labctl.pages.live.server import WatchServer, acts
from labctl.runtimes.record import Record
from labctl.workspace import Workspace


def page_of_stack(workspace: Workspace, lab: Lab, record: Record, exposed: bool) -> WatchServer:
    """The server of a stack's page, not started yet. Raises LabError: the stack does not answer."""
    clock = clock_of(workspace, record)
    hub = Hub(clock, record.endpoints.metrics)
    hub.chat = lambda: address.of(workspace, record.stack, address.CHAT)
    asker = Asker(record.endpoints.grpc, record.models, hub.tell)
    chosen = lab.stacks[record.stack].bench
    hub.head = {
        "title": f"Lab {lab.number}: {lab.title}",
        "stack": record.stack,
        "send": asker.models,
        "into": asker.into,
        "models": list(record.models),
        "limit": clock.limit.why if clock.limit else "",
        "chosen": chosen.model if chosen else "",
    }
    return WatchServer(document(), hub, acts(asker, clock, record.endpoints.metrics), exposed)


def page_of_run(folder: Path, exposed: bool) -> WatchServer:
    """The server of a finished run's page, not started yet. Raises LabError: it has no step log."""
    return WatchServer(replay.page(folder), None, {}, exposed)
