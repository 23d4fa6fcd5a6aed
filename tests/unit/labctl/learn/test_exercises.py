"""Exercises without a server: their manifests, the learner's folder, progress, and the commands."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import yaml
from checkout import ROOT
from click.testing import CliRunner
from exercise_cases import EXERCISES, begin_in
from lab_errors import lab_error

from labctl import repository
from labctl.catalog import load_catalog
from labctl.cli.main import cli
from labctl.learn import desk, judge, overlay
from labctl.learn.attempts import exercise_attempts
from labctl.learn.exercise import Exercise, find_exercise, find_exercises
from labctl.learn.outcome import Check
from labctl.learn.progress import Progress
from labctl.learn.server import STACK, lab_with
from labctl.options import Options
from labctl.plan import make_plan
from labctl.runtimes.lock import stack_lock
from labctl.workspace import Workspace
from labkit.errors import LabError


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout in which exercises can be begun."""
    monkeypatch.chdir(begin_in(tmp_path, monkeypatch))
    return tmp_path


@pytest.fixture
def workspace(root: Path) -> Workspace:
    return Workspace(root, root / "cache")


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, ["exercise", *arguments])
    return result.exit_code, f"{result.output}{result.exception if isinstance(result.exception, LabError) else ''}"


def test_commands_that_the_hints_name_know_the_exercise_server(root: Path) -> None:
    """No server is up here: that is what they must find, not that there is no such stack."""
    texts = [text for e in EXERCISES for text in (*e.manifest.hints, (e.folder / desk.TASK).read_text())]
    named_there = {match for text in texts for match in re.findall(r"`labctl (\w+ exercise)`", text)}
    assert {"status exercise", "metrics exercise"} <= named_there
    for command in (*sorted(named_there), "down exercise"):
        result = CliRunner().invoke(cli, command.split())
        said = f"{result.output}{result.exception or ''}"
        assert re.search("exercise (is absent|is not up|was not up)", said), (command, said)


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda e: e.id)
def test_an_exercise_hides_its_solution_and_its_wrong_answers_differ(exercise: Exercise) -> None:
    """The author's gate as far as it needs no server."""
    texts = {a.name: [*a.files.values()] for a in exercise_attempts(exercise)}
    patches = {path.stem for path in (exercise.folder / "wrong").iterdir()}
    assert patches == exercise.manifest.wrong.keys()
    assert len({tuple(text) for text in texts.values()}) == len(texts), "two of its answers are the same"
    solution = set("\n".join(texts["solution"]).splitlines()) - set("\n".join(texts["starter"]).splitlines())
    assert any(line.strip() for line in solution), "the starter holds the solution"
    assert len(set(exercise.manifest.hints)) == len(exercise.manifest.hints)
    if any(name.endswith(".py") for name in exercise.manifest.files):
        for name, text in texts.items():
            compile("\n".join(text), name, "exec")


def test_every_id_is_of_its_lab_and_can_be_named() -> None:
    assert len({exercise.id for exercise in EXERCISES}) == len(EXERCISES)
    assert find_exercise(EXERCISES, "02A").id == "02a"
    with lab_error("exercise-unknown", "'99z'"):
        find_exercise(EXERCISES, "99z")


def test_the_learners_folder_is_never_written_over_and_reset_keeps_what_was_written(workspace: Workspace) -> None:
    exercise = find_exercise(EXERCISES, "02a")
    folder = desk.lay_out_exercise(exercise, workspace)
    (folder / "model.py").write_text("mine")
    assert desk.lay_out_exercise(exercise, workspace) == folder
    first, second = desk.reset(exercise, workspace), desk.reset(exercise, workspace)
    assert first and second and first != second
    assert (first / "model.py").read_text() == "mine"
    starter = (exercise.folder / "starter" / "model.py").read_text()
    assert (exercise.yours(workspace) / "model.py").read_text() == starter


def test_a_file_that_is_gone_is_named_with_the_way_back(workspace: Workspace) -> None:
    exercise = find_exercise(EXERCISES, "02a")
    with lab_error("exercise-not-started", "02a"):
        desk.files(exercise, workspace)
    (desk.lay_out_exercise(exercise, workspace) / "model.py").unlink()
    with lab_error("exercise-file-missing", "exercises/02a/model.py"):
        desk.files(exercise, workspace)


@pytest.mark.parametrize("width", [60, 66, 80, 100])
def test_what_the_commands_say_wraps_at_words(
    root: Path, workspace: Workspace, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    exercise = find_exercise(EXERCISES, "04a")
    checks = [Check("the mean batch", "above 4", "1.0 " * 30, False, exercise.manifest.says)]
    monkeypatch.setattr(
        judge, "check_exercise", lambda *_: judge.Outcome("04a", False, [1], checks, exercise.manifest.says)
    )
    words = set(" ".join([exercise.manifest.says, *exercise.manifest.hints]).split())
    said = [run("start", "04a")[1], run("check")[1], *(run("hint")[1] for _ in exercise.manifest.hints)]
    for text in (*said, run("list", "iterative")[1]):
        assert max(map(len, text.splitlines())) <= width
    assert words <= set(" ".join(said).split())


def test_the_list_may_be_of_one_lab(root: Path) -> None:
    code, text = run("list", "iterative")
    assert code == 0 and "02a" in text and "01a" not in text and "0 of 3 passed" in text
    assert run("list", "nonsense")[0] == 1


def test_a_config_without_parameters_of_the_lab_is_not_told_that_they_have_no_effect(workspace: Workspace) -> None:
    """04a's config.pbtxt has no place for them, and the learner is not asked for one."""
    exercise = find_exercise(EXERCISES, "04a")
    overlay.fill_overlay(workspace, exercise, {"config.pbtxt": exercise.folder / "solution" / "config.pbtxt"})
    plan = make_plan(workspace, lab_with(exercise, workspace), STACK, Options(set=exercise.manifest.settings))
    assert repository.unused_parameters(plan.request) == []


def test_a_learners_model_is_served_with_an_observer_around_it(workspace: Workspace) -> None:
    exercise = find_exercise(EXERCISES, "02a")
    overlay.fill_overlay(workspace, exercise, {"model.py": exercise.folder / "starter" / "model.py"})
    folder = workspace.folder("exercise").overlay / "iterative-gpt2" / "1"
    assert (folder / "learner.py").read_text() == (exercise.folder / "starter" / "model.py").read_text()
    assert "labserve.observe.exercise" in (folder / "model.py").read_text()
    assert overlay.served_files(exercise) == {"iterative-gpt2/1/learner.py": "exercises/02a/model.py"}


def test_02a_does_not_hold_the_answer_of_02b() -> None:
    for path in find_exercise(EXERCISES, "02a").folder.rglob("model.py"):
        assert "release(" not in path.read_text() and ".pop(" not in path.read_text(), path


def test_a_days_commands(root: Path) -> None:
    """start, hint, hint, solution too early, reset, list: what each says and leaves behind."""
    code, text = run("start", "02a")
    assert code == 0
    assert len(text.splitlines()) == 3
    assert {path.name for path in (root / "exercises" / "02a").iterdir()} == {"model.py", "task.md"}
    hints = [run("hint")[1], run("hint")[1]]
    assert hints[0].startswith("hint 1 of") and hints[1].startswith("hint 2 of") and hints[0] != hints[1]
    code, text = run("solution", "02a")
    assert code == 1 and "--give-up" in text
    code, text = run("solution", "02a", "--give-up")
    assert code == 0 and "RELEASE_RESCHEDULE" in text
    code, text = run("list", "--json")
    rows = {row["id"]: row for row in json.loads(text)}
    assert set(rows["02a"]) == {"id", "lab", "title", "kind", "minutes", "state", "core"}
    assert (rows["02a"]["state"], rows["02b"]["state"]) == ("started", "new")


def test_next_is_what_follows_the_last_one_checked_and_at_the_end_the_first(root: Path, workspace: Workspace) -> None:
    ids = [exercise.id for exercise in EXERCISES if exercise.core]
    assert run("next")[1].startswith(ids[0])
    run("start", ids[4])
    assert run("next")[1].startswith(ids[4]), "it was only opened"
    for last, following in ((ids[4], ids[5]), (ids[-1], ids[0])):
        run("start", last)
        Progress(workspace).record_check(last, passed=False)
        assert run("next")[1].startswith(following)


def test_a_pass_says_how_far_one_is_and_after_the_last_of_a_lab_what_one_can_answer(
    root: Path, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    course = load_catalog(workspace).course
    core = [exercise for exercise in EXERCISES if exercise.core]
    first = core[: len(course[0].core)]

    def check(session: object, exercise: Exercise, *_: object) -> judge.Outcome:
        Progress(workspace).record_check(exercise.id, passed=True)
        return judge.Outcome(exercise.id, True, [1], [], "all holds")

    monkeypatch.setattr(judge, "check_exercise", check)
    for number, exercise in enumerate(first, 1):
        run("start", exercise.id)
        said = run("check")[1]
        assert f"{number} of {len(core)}" in said
        assert (course[0].answers in said) == (exercise is first[-1])
        assert core[number].id in said


def test_the_server_is_not_stopped_under_a_check(root: Path, workspace: Workspace) -> None:
    """Its learner would read of a model that does not load."""
    with stack_lock(workspace, "exercises", "exercise check"):
        code, said = run("stop")
    assert code == 1 and "another 'labctl exercise check' of exercises is in progress" in said
    assert run("stop") == (0, "no exercise server is up\n")


def test_a_check_of_what_was_not_started_says_what_to_type(root: Path) -> None:
    code, text = run("check")
    assert code == 1 and "labctl exercise next" in text


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kind": "guess"}, "kind"),
        ({"stack": "nope"}, "no stack 'nope'"),
        ({"files": {"model.py": "../outside/model.py"}}, "inside the model repository"),
        ({"models": ["simple-gpt2", "nope"]}, "iterative has no nope"),
        ({"replacements": [{"file": "iterative-gpt2/1/model.py", "find": "a", "replace": "b"}]}, "the learner's"),
        ({"wrong": {"one": "only"}}, "wrong"),
        ({"hints": ["a"]}, "hints"),
        ({"colour": "red"}, "colour"),
        ("minutes: 3\n", "the key 'minutes' is there already"),
    ],
)
def test_a_broken_manifest_is_refused_with_its_file_and_key(
    tmp_path: Path, change: dict[str, object] | str, said: str
) -> None:
    """``change``: other values, or what is appended to the file."""
    for name in ("pyproject.toml", "model_repos"):
        (tmp_path / name).symlink_to(ROOT / name)
    lab = tmp_path / "labs" / "02-iterative-scheduling"
    others = shutil.ignore_patterns("02[b-z]-*", "__pycache__")
    shutil.copytree(ROOT / "labs" / lab.name, lab, ignore=others)
    (manifest,) = lab.glob("exercises/02a-*/exercise.yaml")
    text = manifest.read_text()
    text = text + change if isinstance(change, str) else yaml.safe_dump({**yaml.safe_load(text), **change})
    manifest.write_text(text)
    workspace = Workspace(tmp_path, tmp_path / "cache")
    with lab_error("exercise-broken") as caught:
        find_exercises(workspace, load_catalog(workspace))
    assert str(manifest.relative_to(lab)) in f"{caught.value}"
    assert said in f"{caught.value}"
    left_out: list[str] = []
    assert find_exercises(workspace, load_catalog(workspace), left_out.append) == []
    assert any(said in problem for problem in left_out)


def test_one_broken_exercise_does_not_stop_the_list_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin_in(tmp_path, monkeypatch)
    (tmp_path / "labs").unlink()
    shutil.copytree(ROOT / "labs", tmp_path / "labs", ignore=shutil.ignore_patterns("__pycache__"))
    (broken,) = (tmp_path / "labs").glob("*/exercises/02a-*/exercise.yaml")
    broken.write_text(f"{broken.read_text()}\ntypo: 1\n")
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(cli, ["exercise", "list"], catch_exceptions=False)
    assert done.exit_code == 0
    listed = [line.split()[0] for line in done.stdout.splitlines() if re.match(r"\d\d[a-z] ", line)]
    others = [exercise for exercise in EXERCISES if exercise.id != "02a"]
    assert listed == [exercise.id for core in (True, False) for exercise in others if exercise.core == core]
    assert "left out: labs/" in done.stderr and "typo" in done.stderr


def test_an_exercise_serves_only_the_models_it_needs_with_its_own_replacements(workspace: Workspace) -> None:
    lab = lab_with(find_exercise(EXERCISES, "03a"), workspace)
    plan = make_plan(workspace, lab, STACK, Options(set=find_exercise(EXERCISES, "03a").manifest.settings))
    assert plan.served.models == ["llama-python", "llama-python-batched"]
    assert plan.served.replacements == []  # those of the stack are for models that are not served
    assert repository.unused_parameters(plan.request) == []  # nor is a parameter of theirs one that was edited out
    settings = {**find_exercise(EXERCISES, "03c").manifest.settings, "gpt_model_type": "V1"}
    lab = lab_with(find_exercise(EXERCISES, "03c"), workspace)
    all_of_them = make_plan(workspace, lab, STACK, Options(set=settings)).served
    assert "ensemble" in all_of_them.models
    assert [edit.file for edit in all_of_them.replacements] == [
        "tensorrt_llm/config.pbtxt",
        "llama-python-batched/config.pbtxt",
    ]
