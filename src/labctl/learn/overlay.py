"""The learner's files laid over a lab's templates. A model.py of the learner's is served with an observer around it."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from labctl import repository
from labctl.learn.exercise import Exercise
from labctl.options import Options
from labctl.plan import make_plan
from labctl.workspace import Workspace
from labkit.disk import atomic_write, replace_dir

MODEL, LEARNERS = "model.py", "learner.py"
OBSERVER = '''"""What Triton loads: the learner's model, which is learner.py here, with an observer around it."""

from pathlib import Path

from labserve.observe.exercise import observed_model

TritonPythonModel = observed_model(Path(__file__).with_name("learner.py"))
'''


def served_files(exercise: Exercise) -> dict[str, str]:
    """The learner's files as a person calls them, by the place in the model repository at which they are served."""
    return {_served_at(place): exercise.place(name) for place, name in exercise.served.items()}


def names_by_path(exercise: Exercise, workspace: Workspace) -> dict[str, str]:
    """The same names by the path, below the checkout, of the copy in the overlay."""
    overlay = workspace.folder("exercise").overlay.relative_to(workspace.root).as_posix()
    return {f"{overlay}/{place}": name for place, name in served_files(exercise).items()}


def touched_models(exercise: Exercise) -> list[str]:
    """The models of which the learner writes a file."""
    return sorted({place.split("/", 1)[0] for place in exercise.served})


def fill_overlay(workspace: Workspace, exercise: Exercise, files: Mapping[str, Path]) -> None:
    """Fill the overlay: the templates of the touched models, with the learner's files in their places."""
    if not exercise.served:
        return
    options = Options(set=exercise.manifest.settings)
    request = make_plan(workspace, exercise.home, exercise.manifest.stack, options).request
    with replace_dir(workspace.folder("exercise").overlay) as fresh:
        for place, origin in repository.origins(request).items():
            if place.split("/", 1)[0] in touched_models(exercise) and place not in exercise.served:
                _copy(origin, fresh / place)
        for place, name in exercise.served.items():
            _copy(files[name], fresh / _served_at(place))
            if _served_at(place) != place:
                atomic_write(fresh / place, OBSERVER)


def _served_at(place: str) -> str:
    path = Path(place)
    return path.with_name(LEARNERS).as_posix() if path.name == MODEL else place


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
