"""``labctl images build``: the images that a stack's manifests name, for a registry or a cluster's nodes."""

from __future__ import annotations

from labctl.manifest.schema import Lab
from labctl.runtimes import calls, compose_images, images
from labctl.runtimes.compose_projects import Projects
from labctl.runtimes.record import Choices
from labctl.stack.session import Session
from labctl.stack.targets import Target, plan_for
from labctl.stack.todo import Todo


def building(session: Session, lab: Lab, stack: str, choices: Choices, registry: str) -> tuple[Todo, list[str]]:
    """What builds those that are not here and pushes all of them to ``registry`` ("" is none), and their names.

    Raises:
        LabError: the stack cannot have these choices.
    """
    _, choices = Target.of("kubernetes", choices)  # what is said of the cluster changes no image
    plan, projects = plan_for(session, lab, stack, choices, choices.profile), Projects(session.workspace)
    builds = calls.builds(projects, choices.profile, plan.image, guarded=True)
    del builds[images.client_image(session.workspace)]  # clients run elsewhere
    files = images.files_image(session.workspace)
    builds[files] = calls.build_files(projects, files)
    actions = compose_images.build(builds, plan.image)
    if registry:
        actions += [compose_images.push(name, registry) for name in builds]
    names = [f"{registry}/{name}" if registry else name for name in builds]
    return Todo("compose", choices.profile, list(plan.notices), list(actions)), names
