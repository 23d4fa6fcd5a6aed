"""The cuts of public traces: those that are shipped, how they are made, and how one is found by its name."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from checkout import ROOT
from click.testing import CliRunner

from labctl.cli.main import cli
from labkit.predict import traces

sys.path.insert(0, str(ROOT / "scripts"))
from lab_errors import is_lab_error, lab_error

import cut_traces
from cut_traces import FOLDER, LARGEST, MOST, SOURCES, cut, make

SHIPPED = [name for name, source in SOURCES.items() if source.shipped]


@pytest.mark.night
@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_cut_is_a_small_trace_whose_licence_is_stated(name: str) -> None:
    path = traces.find_trace(Path(name), FOLDER)
    assert path.stat().st_size <= LARGEST and len(traces.read_trace(path)) > 400
    (row,) = [line for line in (FOLDER / "README.md").read_text().splitlines() if line.startswith(f"| `{name}`")]
    assert SOURCES[name].licence in row and f"{len(traces.read_trace(path)):,} in" in row
    assert name in (FOLDER.parents[2] / "NOTICE").read_text()


def test_every_file_of_the_folder_is_made_by_the_script_and_every_source_is_explained() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == {*SHIPPED, "README"}
    told = (FOLDER / "README.md").read_text()
    assert [name for name in SOURCES if f"`{name}`" not in told] == []


def test_a_file_of_yours_comes_before_a_cut_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert traces.find_trace(Path("azure-code"), FOLDER) == FOLDER / "azure-code.csv"
    (tmp_path / "azure-code").write_text("mine")
    assert traces.find_trace(Path("azure-code"), FOLDER) == Path("azure-code")


def test_a_name_that_is_neither_is_refused_by_bench() -> None:
    done = CliRunner().invoke(cli, ["bench", "iterative", "--trace", "azure-chat"])
    is_lab_error(done.exception, "trace-unreadable", "azure-chat")


# -- how they are made -------------------------------------------------------------------------------------------------


def test_a_cut_has_whole_lines_up_to_the_number_of_requests_and_the_header_is_none() -> None:
    rows = [f"{number},1,1\n".encode() for number in range(MOST + 9)]
    assert cut([b"TIMESTAMP,ContextTokens,GeneratedTokens\n", *rows]).count(b"\n") == MOST + 1
    assert cut([b"{}\n"] * (MOST + 9)).count(b"\n") == MOST


def test_a_cut_of_long_lines_ends_before_it_is_too_large() -> None:
    line = b"{" + b" " * 997 + b"}\n"
    assert len(cut([line] * MOST)) == LARGEST


def test_a_source_that_cannot_be_had_is_named(tmp_path: Path) -> None:
    with lab_error("trace-not-had", "burstgpt"):
        make("burstgpt", tmp_path, tmp_path)


def test_what_is_no_trace_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"
    (tmp_path / SOURCES["burstgpt"].file).write_text(pointer)
    to = tmp_path / "to"
    to.mkdir()
    with lab_error("trace-unreadable"):
        make("burstgpt", tmp_path, to)
    assert list(to.iterdir()) == []


@pytest.mark.night
def test_the_command_makes_a_cut_of_a_file_that_one_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = (FOLDER / "azure-code.csv").read_bytes()
    (tmp_path / SOURCES["azure-code"].file).write_bytes(whole + b"2023-11-16 19:00:00.0,1,1\n")
    argv = ["cut_traces", "azure-code", "--from", str(tmp_path), "--to", str(tmp_path)]
    monkeypatch.setattr("sys.argv", argv)
    cut_traces.main()
    assert (tmp_path / "azure-code.csv").read_bytes() == whole
