"""The catalogue: a broken manifest is refused with file, key and reason, and blocks what is about its own lab alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from checkout import ROOT
from click.testing import CliRunner
from lab_errors import is_lab_error, lab_error
from minimal_lab import MINIMAL, changed, write

from labctl.cli.main import cli
from labctl.listener import Silent
from labctl.manifest.catalog import Catalog, load_catalog
from labctl.runtimes.record import Endpoints, Record
from labctl.stack.session import Session
from labctl.workspace import Workspace
from labkit.strict_yaml import parse_yaml


def refusal(tmp_path: Path, manifest: Any) -> str:
    with lab_error("manifest-broken") as caught:
        load_catalog(write(tmp_path, "09-demo", manifest))
    return str(caught.value)


@pytest.mark.parametrize("profile", ["cpu", "gpu"])
def test_no_verdict_judges_a_phase_that_its_profile_does_not_run(profile: str) -> None:
    for lab in load_catalog(Workspace(ROOT, ROOT / "unused")).labs:
        assert lab.run
        run = {phase.name for phase in lab.run.phases if profile in phase.profiles}
        skipped = {phase.name for phase in lab.run.phases} - run
        judged = {verdict.value.split(".")[0] for verdict in lab.verdicts if profile in verdict.profiles}
        assert not judged & skipped, lab.short


@pytest.mark.parametrize("word", ["09", "9", "demo", "09-demo", "demo-stack"])
def test_a_lab_answers_to_all_its_names(tmp_path: Path, word: str) -> None:
    catalog: Catalog = load_catalog(write(tmp_path, "09-demo", MINIMAL))
    assert catalog.stack(word) == (catalog.labs[0], "demo-stack")


def test_an_unknown_name_lists_the_known_ones(tmp_path: Path) -> None:
    with lab_error("stack-unknown", "'nope'", "demo-stack"):
        load_catalog(write(tmp_path, "09-demo", MINIMAL)).lab("nope")


@pytest.mark.parametrize(
    ("manifest", "expected"),
    [
        (changed(colour="red"), "colour: Extra inputs"),
        (changed(number="9"), "number: String should match pattern"),
        (changed(stacks={}), "stacks: Dictionary should have at least 1 item"),
        (changed(settings={"size": {"type": "int", "default": "many", "help": "h"}}), "'many' is not a whole number"),
        (changed(verdicts=[{"name": "v", "value": "a.b", "text": "t"}]), "a verdict needs at_least or at_most"),
        ("schema: [1", "lab.yaml: "),
        ("", "schema: Field required"),
        # settings
        (changed("settings/size/when", {"enigne": "fast"}), "settings.size.when.enigne: not a setting of this lab"),
        (changed("settings/size/when", {"engine": "fsat"}), "settings.size.when.engine: 'fsat' is not one of: fast"),
        (changed("settings/size/when", "fast"), "settings.size.when: Input should be a valid dictionary"),
        (changed("settings/loud/when", {"loud": True}), "settings.loud.when.loud: a setting cannot depend on itself"),
        (changed("settings/size/instead", "width"), "'instead' belongs to a setting with 'when'"),
        (changed("settings/size/default", {"cpu": 1, "gup": 2}), "a default by profile is {cpu: ..., gpu: ...}"),
        (changed("*/settings", {"nope": 1}), "stacks.demo-stack.settings.nope: not a setting"),
        (changed("*/settings", {"size": "x"}), "stacks.demo-stack.settings.size: 'x' is not a whole number"),
        # conditions and choices
        (changed("*/variants/fast/when", {"engin": "fast"}), "variants.fast.when.engin: not a setting"),
        (changed("*/variants/fast/when", {"engine": "slow"}), "variants.fast.when.engine: 'slow' is not one of"),
        (changed("*/variants/fast/when", {"loud": "yes"}), "variants.fast.when.loud: 'yes' is written true"),
        (changed("*/replacements", [{"file": "f", "find": "a", "replace": "b", "when": {"x": 1}}]), "when.x: not a"),
        (changed("*/parameters/n", {"setting": "nope", "map": {"a": 1}}), "n.setting: 'nope' is not a"),
        (changed("*/parameters/n", {"setting": "engine", "map": {"fast": 1}}), "n.map: nothing for engine=plain"),
        (changed("*/parameters/n", {"setting": "loud", "map": {"true": 1, "off": 2}}), "n.map: 'off' is written false"),
        (changed("*/parameters/n", {"seting": "loud", "map": {"true": 1}}), "a choice is {setting: NAME, map:"),
        (changed("*/server/args", [{"setting": "engine", "map": {}}]), "args.0.map: nothing for engine=fast or plain"),
        # references
        (changed("*/parameters/n", "{settings.nope}"), "parameters.n: '{settings.nope}' is not a setting"),
        (changed("*/parameters/nope", None), "parameters.nope: '{settings.nope}' is not a setting"),
        (changed("*/parameters/n", "{run_dirr}"), "parameters.n: there is no '{run_dirr}' here"),
        (changed("*/parameters/n", "{ settings.size }"), "parameters.n: '{ settings....' is not a reference"),
        (changed("*/server/args", ["--x={run_dirr}"]), "server.args.0: there is no '{run_dirr}' here"),
        (changed("*/server/env", {"A": "{settings.a}"}), "server.env.A: '{settings.a}' is not a setting"),
        (changed("*/artifacts/weights/source", "{settings.modle}"), "artifacts.weights.source: '{settings.modle}'"),
        (changed("*/artifacts/weights/source", "{run_dir}"), "artifacts.weights.source: there is no '{run_dir}' here"),
        (changed("*/tokenizer", "{artifacts.wieghts}"), "tokenizer: there is no '{artifacts.wieghts}' here"),
        (changed("*/probes", {"m": {"body": {"x": ["{setings.size}"]}}}), "probes.m.x.0: there is no '{setings.size}'"),
        (changed("*/place", {"m/{sizes}": "{artifacts.weights}/a"}), "place: there is no '{sizes}' here"),
        (
            changed("*/variants/gpu", {"when": {"profile": "gpu"}, "parameters": {"n": "{x}"}}),
            "variants.gpu.parameters.n: there is no '{x}'",
        ),
        (changed("settings/size/when", {"profile": "tpu"}), "size.when.profile: 'tpu' is not one of: cpu, gpu"),
        (changed("*/parameters/n", {"setting": "profile", "map": {"cpu": 1}}), "n.map: nothing for profile=gpu"),
        (changed("*/variants/fast/tensorrt_llm", {"a": "{x}"}), "variants.fast.tensorrt_llm.a: there is no '{x}' here"),
        (
            changed("*/parameters/n", "{artifacts.built}"),
            "stacks.demo-stack: there is no '{artifacts.built}' on cpu with the default settings",
        ),
        (
            changed("settings/size/when", {"engine": "fast"}),
            "stacks.demo-stack: there is no '{settings.size}' on cpu with engine=plain",
        ),
        # models, folders, links
        (changed("*/probes", {"other": {"body": {}}}), "probes.other: the stack has no model 'other'; it has: m"),
        (changed("*/bench", {"model": "M"}), "bench.model: the stack has no model 'M'; it has: m"),
        (changed("*/repository", "nope"), "repository: there is no folder model_repos/nope"),
        (changed("*/repository", "./mdoels"), "repository: there is no folder labs/09-demo/mdoels"),
        (changed("*/repository", "../../etc"), "repository: '../../etc' leads out of the checkout"),
        (changed("*/place", {"../x": "{artifacts.weights}/a"}), "place.../x: leads out of the repository"),
        (changed("*/place", {"/etc/x": "{artifacts.weights}/a"}), "place./etc/x: leads out of the repository"),
        (changed("*/place", {"m/1/a": "/etc/passwd"}), "place.m/1/a: '/etc/passwd' is not below an artifact"),
        (changed("*/place", {"m/1/a": "{artifacts.weights}/../a"}), "place.m/1/a: '{artifacts.weights}/../a' is not"),
        # run and verdicts
        (changed("run/phases/0/stack", "nope"), "run.phases.one.stack: no stack 'nope' in this lab"),
        (changed("run/phases/0/client", "nope.py"), "run.phases.one.client: there is no file nope.py in this lab's"),
        (changed("run/phases/0/client", "../09-demo/client.py"), "run.phases.one.client: there is no file ../09-demo"),
        (changed("run/report", "nope.py"), "run.report: there is no file nope.py in this lab's folder"),
        (changed("run/phases/0/set", {"size": "x"}), "run.phases.one.set.size: 'x' is not a whole number"),
        (changed("run/phases/0/set", {"sise": 1}), "run.phases.one.set.sise: not a setting of this lab"),
        (changed("run/phases/0/name", "result"), "run.phases.result: the name is taken by a file that"),
        (
            changed("run/phases", [{**MINIMAL["run"]["phases"][0]}, {**MINIMAL["run"]["phases"][0]}]),
            "run.phases.one: two of this name at a time",
        ),
        (
            {**changed(verdicts=[{"name": "v", "value": "a", "text": "t", "at_least": 1}]), "run": None},
            "verdicts: what they judge is measured by a run, and there is no run section",
        ),
        (
            changed(verdicts=[{"name": "v", "value": "a", "text": "{vaule:.2f}", "at_least": 1}]),
            "verdicts.v.text: '{vaule}' is neither {value} nor {m[METRIC]}",
        ),
        # what is shared
        (changed(include=["nope"]), "include: there is no labs/shared/nope.yaml; there are: none"),
        (changed(include="llm"), "include: a list of names"),
        (changed("*/base", "llm"), "stacks.demo-stack.base: no base 'llm' is included; there are: none"),
    ],
)
def test_a_broken_manifest_is_refused_with_file_key_and_reason(tmp_path: Path, manifest: Any, expected: str) -> None:
    text = refusal(tmp_path, manifest)
    assert "labs/09-demo/lab.yaml" in text
    assert expected in text


def test_every_problem_is_told_at_once(tmp_path: Path) -> None:
    manifest = changed("*/parameters/n", "{run_dirr}") | {"run": {**MINIMAL["run"], "report": "nope.py"}}
    text = refusal(tmp_path, manifest)
    assert "{run_dirr}" in text
    assert "nope.py" in text


def test_a_lab_may_be_without_a_run(tmp_path: Path) -> None:
    manifest = {key: value for key, value in MINIMAL.items() if key != "run"}
    assert load_catalog(write(tmp_path, "09-demo", manifest)).lab("demo").run is None


def test_two_labs_may_not_share_a_name(tmp_path: Path) -> None:
    write(tmp_path, "09-demo", MINIMAL)
    manifest = changed(number="08", name="other", short="demo-stack", run=None)
    manifest["stacks"] = {"s": MINIMAL["stacks"]["demo-stack"]}
    workspace = write(tmp_path, "08-other", manifest)
    with lab_error("manifest-broken", "'demo-stack'", "08-other"):
        load_catalog(workspace)


def test_the_folder_must_say_what_the_manifest_says(tmp_path: Path) -> None:
    with lab_error("manifest-broken", "09-demo", "09-elsewhere"):
        load_catalog(write(tmp_path, "09-elsewhere", MINIMAL))


SHARED: dict[str, Any] = {
    "settings": {"width": {"type": "int", "default": {"cpu": 1, "gpu": 2}, "help": "shared"}},
    "bases": {"common": {"repository": ["./models"], "models": ["m", "n"], "parameters": {"width": None, "a": "b"}}},
}


def with_shared(root: Path, content: Any) -> None:
    (root / "labs" / "shared").mkdir(parents=True)
    (root / "labs" / "shared" / "common.yaml").write_text(yaml.safe_dump(content))


def test_an_included_setting_and_base_are_the_labs_own_with_its_keys_over_them(tmp_path: Path) -> None:
    with_shared(tmp_path, SHARED)
    manifest = changed(
        include=["common"],
        settings={"width": {"default": {"gpu": 8}}},
        stacks={"demo-stack": {"base": "common", "title": "t", "models": ["m"], "parameters": {"a": "c"}}},
    )
    lab = load_catalog(write(tmp_path, "09-demo", manifest)).lab("demo")
    assert (lab.settings["width"].default, lab.settings["width"].help) == ({"cpu": 1, "gpu": 8}, "shared")
    stack = lab.stacks["demo-stack"]
    assert stack.models == ["m"]
    assert stack.parameters == {"width": "{settings.width}", "a": "c"}


@pytest.mark.parametrize(
    ("content", "expected"),
    [({"stacks": {}}, "has settings and bases, nothing else"), ({"settings": []}, "settings and bases of labs/shared")],
)
def test_a_shared_file_of_another_shape_is_refused(tmp_path: Path, content: Any, expected: str) -> None:
    with_shared(tmp_path, content)
    assert expected in refusal(tmp_path, changed(include=["common"]))


def test_a_key_that_is_there_twice_is_refused_with_its_lines(tmp_path: Path) -> None:
    good = yaml.safe_dump(MINIMAL, sort_keys=False)
    text = good.replace("    models:\n", "    repository: ./others\n    models:\n")
    first = text.splitlines().index("    repository: ./models") + 1
    with lab_error("manifest-broken") as caught:
        load_catalog(write(tmp_path, "09-demo", text))
    said = " ".join([caught.value.why, *caught.value.details])
    assert f"lab.yaml: line {first + 1}: the key 'repository' is there already, in line {first}" in said
    load_catalog(write(tmp_path, "09-demo", good))


def test_what_is_merged_from_an_anchor_may_be_overridden() -> None:
    text = "a: &a {x: 1, y: 2}\nin: {b: &b {<<: *a, x: 3}}\nc: {<<: *b, y: 4}"
    assert parse_yaml(text) == {"a": {"x": 1, "y": 2}, "in": {"b": {"x": 3, "y": 2}}, "c": {"x": 3, "y": 4}}
    with pytest.raises(yaml.YAMLError, match="line 2: the key 'x' is there already, in line 1"):
        parse_yaml("a: {x: 1,\n  x: 1}")


def test_a_command_about_one_lab_is_not_refused_for_another_lab_whose_manifest_is_broken(tmp_path: Path) -> None:
    stacks = {"another": MINIMAL["stacks"]["demo-stack"]}
    write(tmp_path, "08-other", changed(number="08", name="other", short="other", stacks=stacks, run=None))
    workspace = write(tmp_path, "09-demo", changed("*/repository", "./elsewhere"))
    catalog = load_catalog(workspace, at_use=True)
    assert catalog.stack("another")[1] == "another"
    for ask in (lambda: catalog.lab("demo"), lambda: catalog.labs, lambda: load_catalog(workspace)):
        with lab_error("manifest-broken", "09-demo/lab.yaml: stacks.demo-stack.repository"):
            ask()


# -- commands beside a broken manifest ---------------------------------------------------------------------------------


@pytest.fixture
def half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    """A checkout with a good lab and a broken one, of which a stack was brought up before it broke."""
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "model_repos").mkdir()
    write(tmp_path, "09-demo", MINIMAL)
    (tmp_path / "labs/09-demo/models/m/1").mkdir(parents=True)
    (tmp_path / "labs/09-demo/models/m/config.pbtxt").write_text('name: "m"')
    write(tmp_path, "10-mine", "schema: 1\nnumber: [")
    monkeypatch.setenv("LABS_ROOT", str(tmp_path))
    session = Session(Workspace.find(), Catalog(()), Silent())
    session.remember(Record("mine", "10-mine", "local", "cpu", {}, ["m"], Endpoints("h:1", "h:2", "h:3")))
    return session


@pytest.mark.parametrize("command", [["status"], ["status", "mine"], ["down", "mine"], ["down", "--all"]])
def test_a_broken_manifest_blocks_neither_status_nor_down(half_written: Session, command: list[str]) -> None:
    done = CliRunner().invoke(cli, command, catch_exceptions=False)
    assert done.exit_code == 0
    assert "left out: labs/10-mine/lab.yaml" in done.stderr
    assert "mine" in done.stdout
    assert (half_written.remembered("mine") is None) == (command[0] == "down")


def test_everything_else_still_refuses_a_broken_manifest(half_written: Session) -> None:
    done = CliRunner().invoke(cli, ["list"])
    is_lab_error(done.exception, "manifest-broken", "labs/10-mine/lab.yaml")


def test_a_stack_that_nobody_knows_is_refused_with_the_broken_manifest_named(half_written: Session) -> None:
    done = CliRunner().invoke(cli, ["down", "nope"])
    is_lab_error(done.exception, "stack-unknown", "'nope'")
    assert "left out: labs/10-mine/lab.yaml" in done.stderr
