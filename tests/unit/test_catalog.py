"""The catalogue: the shipped manifests are good, and a broken one is refused with file, key and reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from labctl.errors import LabError
from labctl.manifest.catalog import Catalog, load
from labctl.workspace import Workspace

ROOT = Path(__file__).resolve().parents[2]

MINIMAL: dict[str, Any] = {
    "schema": 1,
    "number": "09",
    "name": "demo",
    "short": "demo",
    "title": "t",
    "summary": "s",
    "settings": {"size": {"type": "int", "default": 1, "help": "h"}},
    "stacks": {
        "demo-stack": {"title": "t", "repository": "demo", "models": ["m"], "parameters": {"n": "{settings.size}"}}
    },
}


def write(root: Path, folder: str, manifest: Any) -> Workspace:
    path = root / "labs" / folder / "lab.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(manifest if isinstance(manifest, str) else yaml.safe_dump(manifest))
    return Workspace(root, root / "cache")


@pytest.mark.parametrize("profile", ["cpu", "gpu"])
def test_no_verdict_judges_a_phase_that_its_profile_does_not_run(profile: str) -> None:
    for lab in load(Workspace(ROOT, ROOT / "unused")).labs:
        assert lab.run
        run = {phase.name for phase in lab.run.phases if profile in phase.profiles}
        skipped = {phase.name for phase in lab.run.phases} - run
        judged = {verdict.value.split(".")[0] for verdict in lab.verdicts if profile in verdict.profiles}
        assert not judged & skipped, lab.short


def test_every_shipped_manifest_is_good() -> None:
    catalog = load(Workspace(ROOT, ROOT / "unused"))
    assert {"iterative"} <= {lab.short for lab in catalog.labs}


@pytest.mark.parametrize("word", ["09", "9", "demo", "09-demo", "demo-stack"])
def test_a_lab_answers_to_all_its_names(tmp_path: Path, word: str) -> None:
    catalog: Catalog = load(write(tmp_path, "09-demo", MINIMAL))
    assert catalog.stack(word) == (catalog.labs[0], "demo-stack")


def test_an_unknown_name_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="no lab or stack 'nope'") as caught:
        load(write(tmp_path, "09-demo", MINIMAL)).lab("nope")
    assert "demo-stack" in caught.value.why


def changed(**changes: Any) -> dict[str, Any]:
    return {**MINIMAL, **changes}


STACK = MINIMAL["stacks"]["demo-stack"]


@pytest.mark.parametrize(
    ("manifest", "expected"),
    [
        (changed(colour="red"), "colour: Extra inputs"),
        (changed(number="9"), "number: String should match pattern"),
        (changed(stacks={}), "stacks: Dictionary should have at least 1 item"),
        (
            changed(stacks={"x": {**STACK, "parameters": {"n": "{settings.nope}"}}}),
            "'{settings.nope}' is not a setting",
        ),
        (changed(stacks={"x": {**STACK, "settings": {"nope": 1}}}), "stacks.x.settings.nope: not a setting"),
        (changed(stacks={"x": {**STACK, "probes": {"other": {"body": {}}}}}), "probes for models"),
        (changed(settings={"size": {"type": "int", "default": "many", "help": "h"}}), "'many' is not a whole number"),
        (changed(verdicts=[{"name": "v", "value": "a.b", "text": "t"}]), "a verdict needs at_least or at_most"),
        (changed(run={"phases": [{"name": "p", "stack": "nope", "client": "c"}], "report": "r"}), "no stack 'nope'"),
        ("schema: [1", "labs/09-demo/lab.yaml: "),
        ("", "schema: Field required"),
    ],
)
def test_a_broken_manifest_is_refused_with_file_key_and_reason(tmp_path: Path, manifest: Any, expected: str) -> None:
    with pytest.raises(LabError) as caught:
        load(write(tmp_path, "09-demo", manifest))
    text = str(caught.value)
    assert "labs/09-demo/lab.yaml" in text
    assert expected in text


def test_two_labs_may_not_share_a_name(tmp_path: Path) -> None:
    write(tmp_path, "09-demo", MINIMAL)
    workspace = write(tmp_path, "08-other", changed(number="08", name="other", short="demo-stack", stacks={"s": STACK}))
    with pytest.raises(LabError, match="manifest") as caught:
        load(workspace)
    assert "the name 'demo-stack' is already taken by 08-other" in str(caught.value)


def test_the_folder_must_say_what_the_manifest_says(tmp_path: Path) -> None:
    with pytest.raises(LabError) as caught:
        load(write(tmp_path, "09-elsewhere", MINIMAL))
    assert "number and name say 09-demo, the folder is 09-elsewhere" in str(caught.value)
