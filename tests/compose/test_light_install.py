"""A host with the light install (labctl's own requirements: no torch, no Triton) and Docker can run a lab."""

from __future__ import annotations

import json
import os
import subprocess
import sysconfig
import venv
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

pytestmark = pytest.mark.night

HEAVY = ("torch", "transformers", "openvino_genai", "optimum", "onnxruntime", "pytriton")


def light_distributions() -> dict[str, metadata.Distribution]:
    """What ``pip install .`` brings: the closure of the requirements without any extra, and the project itself."""
    found: dict[str, metadata.Distribution] = {}
    wanted = [("triton-serving-labs", frozenset[str]())]
    while wanted:
        name, extras = wanted.pop()
        key = name.lower().replace("_", "-")
        if key in found and not extras:
            continue
        found[key] = metadata.distribution(name)
        for text in found[key].requires or ():
            requirement = Requirement(text)
            environments = [{"extra": extra} for extra in extras or ("",)]
            if requirement.marker is None or any(requirement.marker.evaluate(e) for e in environments):
                wanted.append((requirement.name, frozenset(requirement.extras)))
    return found


@pytest.fixture
def light_python(tmp_path: Path) -> Path:
    """The Python of an environment that holds exactly the light install, by links to this environment's files."""
    venv.create(tmp_path / "light", with_pip=False, symlinks=True)
    python = tmp_path / "light" / "bin" / "python"
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = Path(subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True).stdout.strip())
    here = Path(sysconfig.get_path("purelib"))
    for distribution in light_distributions().values():
        for top in {file.parts[0] for file in distribution.files or () if file.parts[0] not in ("..", "__pycache__")}:
            if not (site / top).exists():
                (site / top).symlink_to(here / top)
    return python


def test_a_lab_with_an_engine_runs_from_a_light_install(own: Path, light_python: Path, tmp_path: Path) -> None:
    env = {**os.environ, "LABS_CACHE": str(tmp_path / "cache")}
    missing = f"import importlib.util as u; print([n for n in {HEAVY} if u.find_spec(n)])"
    assert subprocess.run([light_python, "-c", missing], capture_output=True, text=True, check=True).stdout == "[]\n"
    command = [
        str(light_python),
        "-m",
        "labctl",
        "run",
        "static-batching",
        "--runtime",
        "compose",
        "--quick",
        "--ports",
        "auto",
        "--output",
        "r.json",
        "--set",
        "model=random:tiny-llama",
    ]
    done = subprocess.run(command, cwd=own, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((own / "r.json").read_text())["metrics"], done.stdout
    made = {path.parent.name for path in (tmp_path / "cache").glob("*/*") if not path.name.startswith(".")}
    assert made == {"weights", "engines"}
