"""One folder per broken repository, with the message that a person must see beside it (``expected.txt``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lab_errors import lab_error

from labctl import repository
from labctl.repository import RenderRequest

BROKEN = sorted((Path(__file__).parent / "data" / "broken_repositories").iterdir())
VALUES: dict[str, Any] = {"word": "many", "empty": "", "block": "dynamic_batching {\n}\n", "count": 4}


@pytest.mark.parametrize("folder", BROKEN, ids=lambda folder: folder.name)
def test_a_broken_repository_is_refused_with_its_reason(tmp_path: Path, folder: Path) -> None:
    request = RenderRequest([folder], [], {}, tmp_path / "out", defaults=VALUES, optional={"empty"})
    with lab_error("template-invalid") as caught:
        repository.render_repository(request)
    expected = (folder / "expected.txt").read_text().strip()
    assert any(line.startswith(expected) for line in caught.value.details), str(caught.value)
    assert not request.output.exists()


def config(folder: Path, name: str, text: str = "") -> None:
    (folder / name).mkdir(parents=True)
    (folder / name / "config.pbtxt").write_text(f'name: "{name}"\nbackend: "python"\n{text}')


def test_a_default_that_no_template_uses_is_no_problem(tmp_path: Path) -> None:
    config(tmp_path / "t", "m", "max_batch_size: ${count}\n")
    repository.render_repository(RenderRequest([tmp_path / "t"], [], {}, tmp_path / "out", defaults=VALUES))
    assert "max_batch_size: 4" in (tmp_path / "out" / "m" / "config.pbtxt").read_text()


def test_a_parameter_goes_before_a_default(tmp_path: Path) -> None:
    config(tmp_path / "t", "m", "max_batch_size: ${count}\n")
    repository.render_repository(RenderRequest([tmp_path / "t"], [], {"count": 9}, tmp_path / "out", defaults=VALUES))
    assert "max_batch_size: 9" in (tmp_path / "out" / "m" / "config.pbtxt").read_text()


@pytest.mark.parametrize("family", ["inflight_batcher_llm", "llmapi"])
def test_of_several_template_families_the_one_that_is_meant_is_taken(tmp_path: Path, family: str) -> None:
    for name in ("gpt", "inflight_batcher_llm", "llmapi"):
        size = 2 if name == family else 1
        config(tmp_path / "t" / "all_models" / name, "m", f"max_batch_size: {size}\n")
    repository.render_repository(RenderRequest([tmp_path / "t"], ["m"], {}, tmp_path / "out", family=family))
    assert "max_batch_size: 2" in (tmp_path / "out" / "m" / "config.pbtxt").read_text()


def test_a_model_that_is_there_twice_is_refused_with_both_folders(tmp_path: Path) -> None:
    config(tmp_path / "t" / "one", "m")
    config(tmp_path / "t" / "two", "m")
    with lab_error("template-ambiguous", "model m") as caught:
        repository.render_repository(RenderRequest([tmp_path / "t"], [], {}, tmp_path / "out"))
    assert caught.value.details == (str(tmp_path / "t" / "one" / "m"), str(tmp_path / "t" / "two" / "m"))


def test_a_later_source_replaces_only_the_files_that_it_has(tmp_path: Path) -> None:
    config(tmp_path / "a", "m", "max_batch_size: 1\n")
    (tmp_path / "a" / "m" / "1").mkdir()
    (tmp_path / "a" / "m" / "1" / "model.py").write_bytes(b"kept = True\r\n")
    config(tmp_path / "b", "m", "max_batch_size: 2\n")
    repository.render_repository(RenderRequest([tmp_path / "a", tmp_path / "b"], [], {}, tmp_path / "out"))
    assert "max_batch_size: 2" in (tmp_path / "out" / "m" / "config.pbtxt").read_text()
    assert (tmp_path / "out" / "m" / "1" / "model.py").read_bytes() == b"kept = True\r\n"


def test_caches_of_python_are_not_copied(tmp_path: Path) -> None:
    config(tmp_path / "t", "m")
    (tmp_path / "t" / "m" / "1" / "__pycache__").mkdir(parents=True)
    (tmp_path / "t" / "m" / "1" / "__pycache__" / "model.cpython-311.pyc").write_bytes(b"x")
    (tmp_path / "t" / "m" / "1" / "model.py").write_text("")
    repository.render_repository(RenderRequest([tmp_path / "t"], [], {}, tmp_path / "out"))
    assert [path.name for path in (tmp_path / "out" / "m" / "1").iterdir()] == ["model.py"]


def test_a_version_folder_is_made_only_where_there_is_none(tmp_path: Path) -> None:
    config(tmp_path / "t", "none")
    config(tmp_path / "t", "two")
    (tmp_path / "t" / "two" / "2").mkdir()
    (tmp_path / "t" / "two" / "2" / "model.py").write_text("")
    repository.render_repository(RenderRequest([tmp_path / "t"], [], {}, tmp_path / "out"))
    assert (tmp_path / "out" / "none" / "1").is_dir()
    assert not (tmp_path / "out" / "two" / "1").exists()


def test_a_placed_file_is_a_link_to_where_the_server_sees_it(tmp_path: Path) -> None:
    config(tmp_path / "t", "m")
    place = {"m/1/model.onnx": "/on/the/server/model.onnx"}
    repository.render_repository(RenderRequest([tmp_path / "t"], [], {}, tmp_path / "out", place=place))
    assert str((tmp_path / "out" / "m" / "1" / "model.onnx").readlink()) == "/on/the/server/model.onnx"
