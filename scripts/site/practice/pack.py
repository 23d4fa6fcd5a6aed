"""Pack the page for practising schedulers without a server: ``python pack.py FOLDER`` writes into the built site.

``practice.zip`` holds the Python that runs in the page: the in-flight scheduler, the engine that counts, the arena's
referee, and the exercises that can be judged without a server. Nothing of it is compiled.
"""

from __future__ import annotations

import json
import shutil
import sys
import zipfile
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[3]
EXERCISES = ("05a", "05b", "05c", "06a", "06b")
PACKAGES = ("labkit", "labsched")
PAGE = ("practice.css", "practice.js", "worker.js")
HERE = Path(__file__).parent
ARENA = {
    "id": "arena",
    "title": "The arena: a policy of your own",
    "file": "policy.py",
    "hints": [],
    "task": "Write any of the functions places, line, reserve and victim (docs/guide/arena.md). The policy plays on "
    "the six public traces, with a model of a GPU for its times, beside first come, first served.",
}
STUCK = "A request never gets a place: what do your functions return?"


def exercises() -> dict[str, dict[str, Any]]:
    """The page's content for each exercise, by its folder below ``labs``."""
    found = {}
    for id in EXERCISES:
        (folder,) = ROOT.glob(f"labs/*/exercises/{id}-*")
        manifest = yaml.safe_load((folder / "exercise.yaml").read_text(encoding="utf-8"))
        (name,) = manifest["files"]
        found[str(folder.relative_to(ROOT))] = {
            "id": id,
            "title": manifest["title"],
            "file": name,
            "hints": manifest["hints"],
            "settings": manifest["settings"],
            "stuck": manifest.get("stuck", STUCK),
            "task": (folder / "task.md").read_text(encoding="utf-8"),
            "starter": (folder / "starter" / name).read_text(encoding="utf-8"),
        }
    return found


def pack(target: Path) -> None:
    """Write the archive. The same checkout gives the same bytes."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:

        def put(name: str, text: str) -> None:
            archive.writestr(zipfile.ZipInfo(name), text, zipfile.ZIP_DEFLATED)

        for package in PACKAGES:
            for path in sorted((ROOT / "src" / package).rglob("*.py")):
                put(path.relative_to(ROOT / "src").as_posix(), path.read_text(encoding="utf-8"))
        for folder, shown in exercises().items():
            put(f"exercises/{shown['id']}/exercise.json", json.dumps(shown))
            put(f"exercises/{shown['id']}/check.py", (ROOT / folder / "check.py").read_text(encoding="utf-8"))
        put("browser.py", (HERE / "browser.py").read_text(encoding="utf-8"))


def main() -> None:
    folder = Path(sys.argv[1])
    for name in PAGE:
        shutil.copyfile(HERE / name, folder / name)
    starter = (ROOT / "labs" / "extras" / "arena" / "shortest_prompt.py").read_text(encoding="utf-8")
    shown = json.dumps([*exercises().values(), {**ARENA, "starter": starter}]).replace("<", "\\u003c")
    page = (HERE / "practice.html").read_text(encoding="utf-8")
    (folder / "practice.html").write_text(page.replace("/*exercises*/", shown), encoding="utf-8")
    pack(folder / "practice.zip")


if __name__ == "__main__":
    main()
