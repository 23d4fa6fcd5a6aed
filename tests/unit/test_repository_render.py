"""Rendering: strict, whole or not at all, byte-identical, and checked against Triton's own schema."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from lab_errors import lab_error
from tritonclient.grpc import model_config_pb2

from labctl import repository
from labctl.repository import RenderRequest
from labctl.texts import Replacement

CONFIG = """\
# ${note} ${never_given}
name: "m"
backend: "python"
max_batch_size: ${size}
input [ { name: "x" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 1 ] } ]
parameters { key: "text" value: { string_value: "${text}" } }
parameters { key: "again" value: { string_value: "${text}" } }
"""
GOOD: dict[str, Any] = {"size": 4, "text": "plain", "note": "a comment"}


def source(tmp_path: Path, **configs: str) -> Path:
    folder = tmp_path / "templates"
    for name, config in configs.items():
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "config.pbtxt").write_text(config, encoding="utf-8")
        (folder / name / "1" / "model.py").write_text("# ${not_a_parameter_here}\n")
    return folder


def request(tmp_path: Path, parameters: Mapping[str, Any] = GOOD, **more: Any) -> RenderRequest:
    folder = tmp_path / "templates"
    if not folder.exists():
        source(tmp_path, m=CONFIG)
    return RenderRequest([folder], [], parameters, tmp_path / "out", **more)


def refused(wanted: RenderRequest) -> str:
    with lab_error("template-invalid") as caught:
        repository.render_repository(wanted)
    assert not wanted.output.exists()
    assert not list(wanted.output.parent.glob(".out*")), "a half-written folder is left"
    return str(caught.value)


def parsed(path: Path) -> Any:
    return text_format.Parse(path.read_text(encoding="utf-8"), model_config_pb2.ModelConfig())


def test_every_parameter_arrives_where_triton_reads_it(tmp_path: Path) -> None:
    repository.render_repository(request(tmp_path))
    config = parsed(tmp_path / "out" / "m" / "config.pbtxt")
    assert config.max_batch_size == 4
    assert config.parameters["text"].string_value == config.parameters["again"].string_value == "plain"
    assert (tmp_path / "out" / "m" / "1" / "model.py").read_text() == "# ${not_a_parameter_here}\n"


@pytest.mark.parametrize(
    "value",
    ["a:b,c/d#e&f", 'it\'s "quoted"', "back\\slash", "two\nlines\tand tabs", "서울 Zürich 🙂", "${size}", "$1 \\1"],
)
def test_fault_11_any_text_survives_a_quoted_place(tmp_path: Path, value: str) -> None:
    repository.render_repository(request(tmp_path, {**GOOD, "text": value}))
    assert parsed(tmp_path / "out" / "m" / "config.pbtxt").parameters["text"].string_value == value


def test_booleans_and_numbers_are_written_as_pbtxt_writes_them(tmp_path: Path) -> None:
    repository.render_repository(request(tmp_path, {**GOOD, "text": True}))
    assert parsed(tmp_path / "out" / "m" / "config.pbtxt").parameters["text"].string_value == "true"


def test_fault_10_all_problems_are_told_together_with_file_line_and_key(tmp_path: Path) -> None:
    other = 'name: "wrong"\nmax_batch_size: ${missing}\n'
    source(tmp_path, m=CONFIG, n=other)
    text = refused(request(tmp_path, {"size": 4, "colour": "red", "text": ""}))
    assert "m/config.pbtxt:7: text: the value is empty" in text
    assert "n/config.pbtxt:2: missing: no value is given" in text
    assert "colour: no template uses it" in text


def test_an_empty_value_is_fine_where_empty_means_something(tmp_path: Path) -> None:
    repository.render_repository(request(tmp_path, {**GOOD, "text": ""}, optional={"text"}))
    assert parsed(tmp_path / "out" / "m" / "config.pbtxt").parameters["text"].string_value == ""


def test_a_value_of_the_wrong_kind_is_told_with_its_key(tmp_path: Path) -> None:
    text = refused(request(tmp_path, {**GOOD, "size": "many"}))
    assert "m/config.pbtxt:4: size: " in text
    assert "many" in text


def test_a_placeholder_that_cannot_be_filled_is_told(tmp_path: Path) -> None:
    source(tmp_path, m='name: "m"\nmax_batch_size: ${not a name}\n')
    assert "m/config.pbtxt:2: '${not a name}' is not a placeholder" in refused(request(tmp_path, {}))


def test_a_placeholder_in_a_comment_is_never_required(tmp_path: Path) -> None:
    repository.render_repository(request(tmp_path))
    assert "# a comment ${never_given}" in (tmp_path / "out" / "m" / "config.pbtxt").read_text()


def test_the_name_must_be_that_of_the_folder(tmp_path: Path) -> None:
    source(tmp_path, m='name: "other"\n')
    assert "name: says 'other', but the folder is m" in refused(request(tmp_path, {}))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_fault_11_rendering_twice_is_byte_identical_and_the_old_one_is_replaced(tmp_path: Path) -> None:
    repository.render_repository(request(tmp_path))
    first = contents(tmp_path / "out")
    (tmp_path / "out" / "stale").write_text("left from before")
    repository.render_repository(request(tmp_path))
    assert contents(tmp_path / "out") == first
    assert not (tmp_path / "out" / "stale").exists()


def test_fault_10_a_refused_render_leaves_the_old_repository_intact(tmp_path: Path) -> None:
    repository.render_repository(request(tmp_path))
    with lab_error("template-invalid"):
        repository.render_repository(request(tmp_path, {}))
    assert parsed(tmp_path / "out" / "m" / "config.pbtxt").max_batch_size == 4


def test_fault_7_a_full_disk_leaves_the_old_repository_intact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository.render_repository(request(tmp_path))

    def full(*args: object, **kwargs: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(Path, "write_text", full)
    with lab_error("write-failed", tmp_path / "out"):
        repository.render_repository(request(tmp_path, {**GOOD, "size": 9}))
    assert parsed(tmp_path / "out" / "m" / "config.pbtxt").max_batch_size == 4
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".out")] == []


def test_parallel_renders_do_not_collide(tmp_path: Path) -> None:
    source(tmp_path, m=CONFIG)
    errors: list[BaseException] = []

    def work(size: int) -> None:
        try:
            for _ in range(5):
                repository.render_repository(request(tmp_path, {**GOOD, "size": size}))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(size,)) for size in (1, 2, 3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert parsed(tmp_path / "out" / "m" / "config.pbtxt").max_batch_size in (1, 2, 3, 4)


@pytest.mark.parametrize("link", ["../outside", "m/../../outside", "/tmp/outside"])
def test_a_link_that_leads_out_of_the_repository_is_refused(tmp_path: Path, link: str) -> None:
    assert "leads out of the repository" in refused(request(tmp_path, place={link: "/anywhere"}))


def test_a_replacement_that_matches_nothing_is_an_error(tmp_path: Path) -> None:
    wanted = request(tmp_path, replacements=[Replacement("m/config.pbtxt", "nowhere", "x")])
    assert "'nowhere' is to be replaced, but it is nowhere" in refused(wanted)


def test_a_literal_replacement_is_made(tmp_path: Path) -> None:
    repository.render_repository(
        request(tmp_path, replacements=[Replacement("m/config.pbtxt", 'backend: "python"', 'backend: "x"')])
    )
    assert parsed(tmp_path / "out" / "m" / "config.pbtxt").backend == "x"


def test_a_missing_model_is_told_with_where_it_was_looked_for(tmp_path: Path) -> None:
    source(tmp_path, m=CONFIG)
    with lab_error("template-missing", "nope"):
        repository.render_repository(RenderRequest([tmp_path / "templates"], ["nope"], {}, tmp_path / "out"))


STEP = (
    'name: "{0}"\nbackend: "python"\nmax_batch_size: 4\ninput [ {{ name: "I" data_type: {1} dims: [ {2} ] }} ]\n'
    'output [ {{ name: "O" data_type: {3} dims: [ {4} ] }} ]\n'
)
ENSEMBLE = """\
name: "e"
platform: "ensemble"
max_batch_size: 4
input [ {{ name: "IN" data_type: TYPE_STRING dims: [ 1 ] }} ]
output [ {{ name: "OUT" data_type: TYPE_STRING dims: [ 1 ] }} ]
ensemble_scheduling {{
  step [
    {{ model_name: "a" model_version: -1 input_map {{ key: "I" value: "IN" }} output_map {{ key: "O" value: "ids" }} }},
    {{ model_name: "{b}" model_version: -1 input_map {{ key: "{i}" value: "ids" }}
      output_map {{ key: "O" value: "{out}" }} }}
  ]
}}
"""


def ensemble(
    tmp_path: Path, b: str = "b", i: str = "I", out: str = "OUT", takes: str = "TYPE_INT64", dims: str = "-1"
) -> RenderRequest:
    source(
        tmp_path,
        a=STEP.format("a", "TYPE_STRING", 1, "TYPE_INT64", -1),
        b=STEP.format("b", takes, dims, "TYPE_STRING", 1),
        e=ENSEMBLE.format(b=b, i=i, out=out),
    )
    return request(tmp_path, {})


def test_a_sound_ensemble_is_rendered_with_its_version_folder(tmp_path: Path) -> None:
    repository.render_repository(ensemble(tmp_path))
    assert (tmp_path / "out" / "e" / "1").is_dir()


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ({"b": "c"}, "e/config.pbtxt: c: a step names this model, but it is not in the repository"),
        ({"i": "J"}, "b has no input J (it has I)"),
        ({"out": "lost"}, "the ensemble's output takes it, but nothing produces it"),
        ({"takes": "TYPE_INT32"}, "b.I takes TYPE_INT32, but a.O has TYPE_INT64"),
        ({"dims": "-1, -1"}, "b.I takes shape [-1, -1, -1], but a.O has [-1, -1]"),
    ],
)
def test_an_ensemble_that_does_not_fit_is_refused(tmp_path: Path, wrong: dict[str, str], expected: str) -> None:
    assert expected in refused(ensemble(tmp_path, **wrong))
