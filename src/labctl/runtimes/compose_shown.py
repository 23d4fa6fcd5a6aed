"""What the compose runtime would do, for ``--dry-run``: the same calls, shown and not made."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from labctl.runtimes import calls, images
from labctl.runtimes.base import Launch, Shown
from labctl.runtimes.calls import Call
from labctl.runtimes.compose_projects import Projects
from labctl.workspace import Workspace


class ComposeShown:
    """The part of the compose runtime that only tells."""

    workspace: Workspace
    _projects: Projects

    def _shown(self, title: str, call: Call, override: Path | None = None, container: str = "") -> Shown:
        argv = self._projects.argv(call.stack, call.command, call.profile, override)
        return Shown(title, argv, {**self._projects.environment(call.stack), **call.env}, container)

    def show_prepare(self, profile: str, image: str = "") -> list[Shown]:
        pull = [Shown(f"{image} (many gigabytes)", calls.pull(image))] if image else []
        builds = calls.builds(self.workspace, profile, image)
        return pull + [self._shown(f"image {name}", call) for name, call in builds.items()]

    def show_copy_out(self, image: str, path: str, target: Path) -> list[Shown]:
        server = images.server_image(self.workspace, "gpu", image)
        name = self._projects.name("templates")
        container = f"{name}: {server}, never started, removed at once"
        titles = ("the release's model templates, copied out of its image", "", "")
        return [
            Shown(title, argv, container=container if title else "")
            for title, argv in zip(titles, calls.copy_out(server, name, path, target), strict=True)
        ]

    def show_tool(self, title: str, argv: Sequence[str]) -> list[Shown]:
        return self._shown_one_shot(title, images.server_image(self.workspace, calls.TOOLS), argv)

    def show_build(self, title: str, image: str, gpus: int, argv: Sequence[str]) -> list[Shown]:
        return self._shown_one_shot(title, images.server_image(self.workspace, "gpu", image), argv, "gpu", gpus)

    def _shown_one_shot(
        self, title: str, image: str, argv: Sequence[str], profile: str = "cpu", gpus: int = 0
    ) -> list[Shown]:
        name = f"{self._projects.name(calls.BUILDER)}-engine-builder"
        container = f"{name}: {image}{_gpus(gpus)}, gone when it ends"
        return [self._shown(title, calls.one_shot(name, image, list(self._seen(argv)), profile, gpus), None, container)]

    def show_start(self, launch: Launch) -> list[Shown]:
        record, server = launch.record, images.server_image(self.workspace, launch.record.profile, launch.image)
        gpus = _gpus(launch.ranks) if record.profile == "gpu" else ""
        ports = ", ".join((record.endpoints.http, record.endpoints.grpc, record.endpoints.metrics))
        entry = calls.service(launch).get("entrypoint", ())
        runs = f", runs {' '.join(map(str, entry))}" if isinstance(entry, list) else ""
        container = f"{self._projects.name(record.stack)}-triton-1: {server}{gpus}, on {ports}{runs}"
        override = self._projects.override_path(record.stack)
        return [self._shown(f"the server of {record.stack}", calls.serve(launch, server), override, container)]

    def show_files(self, launch: Launch) -> list[str]:
        return [str(self._projects.override_path(launch.record.stack))]

    def show_client(self, title: str, argv: Sequence[str], stack: str) -> list[Shown]:
        project, service = (stack, "client") if stack else (calls.REPORT, "report")
        image, name = images.client_image(self.workspace), f"{self._projects.name(project)}-{service}"
        call = Call(project, calls.client(name, service, ["-T"], argv), {"LABS_CLIENT_IMAGE": image})
        return [self._shown(title, call, container=f"{name}: {image}, gone when it ends")]

    def show_stop(self, stack: str) -> list[Shown]:
        argv = self._projects.argv(stack, calls.down(), files=False)
        return [Shown(f"{stack} goes, and all of its project", argv, self._projects.environment(stack))]

    def _seen(self, argv: Sequence[str]) -> Iterable[str]:
        """Arguments with the paths below the cache or models/ as the containers see them."""
        for text in argv:
            mounted = any(Path(text).is_relative_to(f) for f in (self.workspace.cache, self.workspace.models))
            yield self._projects.inside(Path(text), server=False) if mounted else text


def _gpus(count: int) -> str:
    return f", {count} GPU{'s' if count > 1 else ''}" if count else ""
