"""The page of a stack that is up, or of a run that is over."""

from __future__ import annotations

from pathlib import Path

from labctl.manifest.schema import Lab
from labctl.orchestrator.clock import Clock
from labctl.orchestrator.pause import pause_limit
from labctl.runtimes.base import Record
from labctl.watch import address, replay
from labctl.watch.asking import Asker
from labctl.watch.hub import Hub
from labctl.watch.page import document
from labctl.watch.server import WatchServer, acts
from labctl.workspace import Workspace


def page(workspace: Workspace, lab: Lab, record: Record, exposed: bool) -> WatchServer:
    """Its server, not started yet.

    Raises:
        LabError: the stack does not answer.
    """
    limit = pause_limit(workspace.repository_dir(record.stack))
    run_dir = workspace.run_dir(record.stack, record.folder(record.servers[0].number))
    clock = Clock(run_dir, tuple(record.models), limit)
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
        "limit": limit.why if limit else "",
        "chosen": chosen.model if chosen else "",
    }
    return WatchServer(document(), hub, acts(asker, clock, record.endpoints.metrics), exposed)


def recorded(folder: Path, exposed: bool) -> WatchServer:
    """The same for a run's folder.

    Raises:
        LabError: it has no step log.
    """
    return WatchServer(replay.page(folder), None, {}, exposed)
