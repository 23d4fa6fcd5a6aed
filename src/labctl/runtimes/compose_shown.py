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

    def _shown(self, call: Call, override: Path | None = None) -> Shown:
        argv = self._projects.argv(call.stack, call.command, call.profile, override)
        return Shown(argv, {**self._projects.environment(call.stack), **call.env})

    def show_prepare(self, profile: str, image: str = "") -> list[Shown]:
        pull = [Shown(calls.pull(image))] if image else []
        return pull + [self._shown(call) for call in calls.builds(self.workspace, profile, image).values()]

    def show_copy_out(self, image: str, path: str, target: Path) -> list[Shown]:
        server = images.server_image(self.workspace, "gpu", image)
        return [Shown(argv) for argv in calls.copy_out(server, self._projects.name("templates"), path, target)]

    def show_tool(self, argv: Sequence[str]) -> list[Shown]:
        image = images.server_image(self.workspace, calls.TOOLS)
        return [self._shown(calls.one_shot(self._one_shot_name(), image, list(self._seen(argv))))]

    def show_build(self, image: str, gpus: int, argv: Sequence[str]) -> list[Shown]:
        server = images.server_image(self.workspace, "gpu", image)
        return [self._shown(calls.one_shot(self._one_shot_name(), server, list(self._seen(argv)), "gpu", gpus))]

    def show_start(self, launch: Launch) -> list[Shown]:
        server = images.server_image(self.workspace, launch.record.profile, launch.image)
        return [self._shown(calls.serve(launch, server), self._projects.override_path(launch.record.stack))]

    def show_containers(self, launch: Launch) -> list[str]:
        server = images.server_image(self.workspace, launch.record.profile, launch.image)
        gpus = f", {launch.ranks} GPU{'s' if launch.ranks > 1 else ''}" if launch.record.profile == "gpu" else ""
        ports = ", ".join((launch.record.endpoints.http, launch.record.endpoints.grpc, launch.record.endpoints.metrics))
        entry = calls.service(launch).get("entrypoint", ())
        runs = f", runs {' '.join(map(str, entry))}" if isinstance(entry, list) else ""
        return [f"{self._projects.name(launch.record.stack)}-triton-1: {server}{gpus}, on {ports}{runs}"]

    def show_files(self, launch: Launch) -> list[str]:
        return [str(self._projects.override_path(launch.record.stack))]

    def show_client(self, argv: Sequence[str], stack: str) -> list[Shown]:
        project, service = (stack, "client") if stack else (calls.REPORT, "report")
        env = {"LABS_CLIENT_IMAGE": images.client_image(self.workspace)}
        name = f"{self._projects.name(project)}-{service}"
        return [self._shown(Call(project, calls.client(name, service, ["-T"], argv), env))]

    def _one_shot_name(self) -> str:
        return f"{self._projects.name(calls.BUILDER)}-engine-builder"

    def _seen(self, argv: Sequence[str]) -> Iterable[str]:
        """Arguments with the paths below the cache or models/ as the containers see them."""
        for text in argv:
            mounted = any(Path(text).is_relative_to(f) for f in (self.workspace.cache, self.workspace.models))
            yield self._projects.inside(Path(text), server=False) if mounted else text
