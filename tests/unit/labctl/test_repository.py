"""Rendering: strict, whole or not at all, byte-identical, and checked against Triton's own schema."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from hypothesis import example, given, settings
from hypothesis import strategies as st
from lab_errors import lab_error
from tritonclient.grpc import model_config_pb2

from labctl import repository
from labctl.repository import RenderRequest
from labctl.texts import Replacement

CONFIG = """\
name: "m"
backend: "python"
max_batch_size: ${size}
input [ { name: "I" data_type: TYPE_INT64 dims: [ -1 ] } ]
output [ { name: "O" data_type: TYPE_INT64 dims: [ -1 ] } ]
parameters { key: "text" value: { string_value: "${text}" } }
# ${text} ${never_given}
"""
GOOD: dict[str, Any] = {"size": 4, "text": "plain"}


def source(tmp_path: Path, **configs: str) -> Path:
    """Templates: a model with each of these configurations."""
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


def refused(wanted: RenderRequest) -> tuple[str, ...]:
    """The problems that are told, after which nothing is there."""
    with lab_error("template-invalid") as caught:
        repository.render_repository(wanted)
    assert not wanted.output.exists()
    assert not list(wanted.output.parent.glob(".out*")), "a half-written folder is left"
    return tuple(caught.value.details)


def rendered(tmp_path: Path, model: str = "m") -> Any:
    """The configuration as Triton reads it."""
    text = (tmp_path / "out" / model / "config.pbtxt").read_text(encoding="utf-8")
    return text_format.Parse(text, model_config_pb2.ModelConfig())


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_every_parameter_arrives_where_triton_reads_it_and_no_other_file_is_filled(tmp_path: Path) -> None:
    repository.render_repository(request(tmp_path))
    assert rendered(tmp_path).max_batch_size == 4
    assert "# plain ${never_given}" in (tmp_path / "out" / "m" / "config.pbtxt").read_text(), "a comment needs nothing"
    assert (tmp_path / "out" / "m" / "1" / "model.py").read_text() == "# ${not_a_parameter_here}\n"


@settings(max_examples=50)
@given(st.text(st.characters(codec="utf-8", exclude_characters="\0")))
@example("")
@example("a:b,c/d#e&f")
@example('it\'s "quoted" back\\slash\ttab\n서울 🙂')
@example("${size} $1 \\1")
def test_fault_11_any_text_survives_a_quoted_place(tmp_path: Path, value: str) -> None:
    repository.render_repository(request(tmp_path, {**GOOD, "text": value}, optional={"text"}))
    assert rendered(tmp_path).parameters["text"].string_value == value


def test_a_boolean_is_written_as_pbtxt_writes_it(tmp_path: Path) -> None:
    repository.render_repository(request(tmp_path, {**GOOD, "text": True}))
    assert rendered(tmp_path).parameters["text"].string_value == "true"


@pytest.mark.parametrize(("given", "size"), [({}, 3), ({"size": 9}, 9)])
def test_a_parameter_goes_before_a_default_and_a_default_may_be_of_no_use(
    tmp_path: Path, given: dict[str, int], size: int
) -> None:
    repository.render_repository(request(tmp_path, given, defaults={"text": "x", "size": 3, "other": 1}))
    assert rendered(tmp_path).max_batch_size == size


def test_fault_10_all_problems_are_told_together_with_file_line_and_key(tmp_path: Path) -> None:
    source(tmp_path, m=CONFIG, n='name: "wrong"\nmax_batch_size: ${missing}\n')
    told = "\n".join(refused(request(tmp_path, {"size": 4, "colour": "red", "text": ""})))
    for place in ("m/config.pbtxt:6: text: ", "n/config.pbtxt:2: missing: ", "colour: "):
        assert place in told


DEFAULTS: dict[str, Any] = {**GOOD, "word": "many", "empty": ""}


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('name: "m"', 'name: "n"', "m/config.pbtxt: name: says 'n', but the folder is m"),
        ("${size}", "${word}", "m/config.pbtxt:3: "),
        ("${size}", "${empty}", "m/config.pbtxt:4: "),  # the parser misses the value at the next word
        ("${size}", "${never}", "m/config.pbtxt:3: never: no value is given"),
        ("${size}", "${not a name}", "m/config.pbtxt:3: '${not a name}' is not a placeholder"),
        ('I" data_type: TYPE_INT64', 'I" data_type: TYPE_FLOAT', "m/config.pbtxt:4: "),
        ("# ${text}", "batching: true #", "m/config.pbtxt:7: "),
        ("# ${text} ${never_given}", "dynamic_batching {", "m/config.pbtxt:"),
    ],
)
def test_a_broken_configuration_is_refused_with_its_line(tmp_path: Path, old: str, new: str, problem: str) -> None:
    source(tmp_path, m=CONFIG.replace(old, new))
    wanted = request(tmp_path, {}, defaults=DEFAULTS, optional={"empty"})
    assert any(line.startswith(problem) for line in refused(wanted))


def test_a_version_folder_is_made_only_where_there_is_none(tmp_path: Path) -> None:
    (source(tmp_path, a="", b="") / "a" / "1" / "model.py").unlink()
    (tmp_path / "templates" / "a" / "1").rmdir()
    (tmp_path / "templates" / "b" / "1").rename(tmp_path / "templates" / "b" / "2")
    repository.render_repository(request(tmp_path, {}))
    assert (tmp_path / "out" / "a" / "1").is_dir() and not (tmp_path / "out" / "b" / "1").exists()


def test_fault_11_rendering_twice_is_byte_identical_and_the_old_one_is_replaced(tmp_path: Path) -> None:
    repository.render_repository(request(tmp_path))
    first = contents(tmp_path / "out")
    (tmp_path / "out" / "stale").write_text("left from before")
    repository.render_repository(request(tmp_path))
    assert contents(tmp_path / "out") == first


def test_fault_10_a_refused_render_leaves_the_old_repository_intact(tmp_path: Path) -> None:
    repository.render_repository(request(tmp_path))
    with lab_error("template-invalid"):
        repository.render_repository(request(tmp_path, {}))
    assert rendered(tmp_path).max_batch_size == 4


def test_fault_7_a_full_disk_leaves_the_old_repository_intact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository.render_repository(request(tmp_path))

    def full(*args: object, **kwargs: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(Path, "write_text", full)
    with lab_error("write-failed", tmp_path / "out"):
        repository.render_repository(request(tmp_path, {**GOOD, "size": 9}))
    assert rendered(tmp_path).max_batch_size == 4
    assert not list(tmp_path.glob(".out*"))


def test_a_placed_file_is_a_link_to_where_the_server_sees_it(tmp_path: Path) -> None:
    repository.render_repository(request(tmp_path, place={"m/1/model.onnx": "/on/the/server/model.onnx"}))
    assert str((tmp_path / "out" / "m" / "1" / "model.onnx").readlink()) == "/on/the/server/model.onnx"


@pytest.mark.parametrize("link", ["../outside", "m/../../outside", "/tmp/outside"])
def test_a_link_that_leads_out_of_the_repository_is_refused(tmp_path: Path, link: str) -> None:
    assert any("leads out of the repository" in line for line in refused(request(tmp_path, place={link: "/anywhere"})))


def test_a_literal_replacement_is_made_and_one_that_matches_nothing_is_an_error(tmp_path: Path) -> None:
    lost = request(tmp_path, replacements=[Replacement("m/config.pbtxt", "nowhere", "x")])
    assert any("'nowhere'" in line for line in refused(lost))
    made = [Replacement("m/config.pbtxt", 'backend: "python"', 'backend: "x"')]
    repository.render_repository(request(tmp_path, replacements=made))
    assert rendered(tmp_path).backend == "x"


def test_a_missing_model_is_told_with_where_it_was_looked_for(tmp_path: Path) -> None:
    source(tmp_path, m=CONFIG)
    with lab_error("template-missing", "nope"):
        repository.render_repository(RenderRequest([tmp_path / "templates"], ["nope"], {}, tmp_path / "out"))


@pytest.mark.parametrize("family", ["inflight_batcher_llm", "gpt"])
def test_of_several_template_families_the_one_that_is_meant_is_taken(tmp_path: Path, family: str) -> None:
    for name in ("gpt", "inflight_batcher_llm"):
        source(tmp_path / name, m=CONFIG.replace("${size}", "2" if name == family else "1"))
        (tmp_path / "all_models").mkdir(exist_ok=True)
        (tmp_path / name / "templates").rename(tmp_path / "all_models" / name)
    made = RenderRequest([tmp_path], ["m"], {"text": "x"}, tmp_path / "out", family=family)
    repository.render_repository(made)
    assert rendered(tmp_path).max_batch_size == 2


def test_a_model_that_is_there_twice_is_refused_with_both_folders(tmp_path: Path) -> None:
    folders = [source(tmp_path / name, m=CONFIG) / "m" for name in ("one", "two")]
    with lab_error("template-ambiguous", "model m") as caught:
        repository.render_repository(RenderRequest([tmp_path], [], GOOD, tmp_path / "out"))
    assert caught.value.details == tuple(map(str, folders))


def test_a_later_source_replaces_only_the_files_that_it_has(tmp_path: Path) -> None:
    one, other = (source(tmp_path / name, m=CONFIG.replace("${size}", size)) for name, size in (("a", "1"), ("b", "2")))
    (one / "m" / "1" / "kept.py").write_bytes(b"kept = True\r\n")
    repository.render_repository(RenderRequest([one, other], [], {"text": "x"}, tmp_path / "out"))
    assert rendered(tmp_path).max_batch_size == 2
    assert (tmp_path / "out" / "m" / "1" / "kept.py").read_bytes() == b"kept = True\r\n"


def test_caches_of_python_are_not_copied(tmp_path: Path) -> None:
    cache = source(tmp_path, m=CONFIG) / "m" / "1" / "__pycache__"
    cache.mkdir()
    (cache / "model.cpython-311.pyc").write_bytes(b"x")
    repository.render_repository(request(tmp_path))
    assert [path.name for path in (tmp_path / "out" / "m" / "1").iterdir()] == ["model.py"]
