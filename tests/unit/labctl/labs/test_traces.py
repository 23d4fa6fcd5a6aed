"""Traces and datasets as people have them: read whatever a spreadsheet made of them, or refused with line and field."""

from __future__ import annotations

import csv
import io
import json
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from checkout import ROOT
from click.testing import CliRunner
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from lab_errors import is_lab_error, lab_error
from recordings import made_up_recording, some_requests, written

from labctl.cli.trace import convert_command
from labctl.labs import traces, workloads
from labkit.client import dataset
from labkit.errors import LabError
from labsched.log.settings import HASH_BYTES

HERE = settings(max_examples=60)
PYTHONS_WORDS = re.compile(r"NoneType|argument|operand|iterable|object is|Error|codec|int\(\)|literal|subscript")
ROW = st.tuples(st.integers(0, 10**6), st.integers(1, 4000), st.integers(0, 400))  # ms, prompt, answer
ROWS = st.lists(ROW, min_size=1, max_size=5).filter(lambda rows: any(row[2] for row in rows))
FORMS = ("own", "mooncake")
MOONCAKE = traces.MooncakeForm(512, "ms")


def records(form: str, rows: list[tuple[int, int, int]]) -> list[dict[str, Any]]:
    """The rows as the format's own fields, in order of time."""
    rows = sorted(rows, key=lambda row: row[0])
    if form == "own":
        return [dict(zip(traces.OWN, (at / 1000, *rest), strict=True)) for at, *rest in rows]
    return [
        {"timestamp": at, "input_length": p, "output_length": a, "hash_ids": [*range(-(-p // 512))]}
        for at, p, a in rows
    ]


def saved(form: str, found: list[dict[str, Any]], chance: random.Random | None = None) -> str:
    """The text of a file; by chance its columns are in another order, and it is in quotes, with CRLF, with gaps."""
    end = chance.choice(["\n", "\r\n"]) if chance else "\n"
    quoted = bool(chance and chance.random() < 0.5)
    if form == "mooncake":
        if quoted:
            found = [{k: str(v) if isinstance(v, int | float) else v for k, v in row.items()} for row in found]
        return "".join(json.dumps(record) + end for record in found)
    names = [*found[0]]
    out = io.StringIO()
    if chance:
        chance.shuffle(names)
    quoting: Any = csv.QUOTE_ALL if quoted else csv.QUOTE_MINIMAL
    writer = csv.DictWriter(out, names, quoting=quoting, lineterminator=end)
    writer.writeheader()
    for row in found:
        if chance and chance.random() < 0.3:
            out.write(chance.choice([end, f",,,{end}"]))
        writer.writerow(row)
    return out.getvalue()


def read(folder: Path, text: str, encoding: str = "utf-8") -> tuple[list[tuple[float, int, int]], int]:
    """What is read of a trace, and how many rows were left out."""
    path, left = folder / "trace", [0]
    path.write_bytes(text.encode(encoding))
    form = MOONCAKE if text.lstrip().startswith("{") else None
    found = traces.read_trace(path, None, left.append, form)
    return [(round(one.at, 3), one.prompt, one.limit) for one in found], left[-1]


@HERE
@given(form=st.sampled_from(FORMS), rows=ROWS, mark=st.booleans(), seed=st.integers(0, 99))
def test_a_trace_is_the_same_however_it_was_saved(
    tmp_path: Path, form: str, rows: list[tuple[int, int, int]], mark: bool, seed: int
) -> None:
    text = saved(form, records(form, rows), random.Random(seed))
    start = min(at for at, _, answer in rows if answer)
    expected = sorted((round((at - start) / 1000, 3), prompt, answer) for at, prompt, answer in rows if answer)
    got, left_out = read(tmp_path, text, "utf-8-sig" if mark else "utf-8")
    assert sorted(got) == expected
    assert left_out == sum(not answer for _, _, answer in rows)


OWN = "arrival_s,prompt_tokens,output_tokens\n5,472,18\n45,1087,0\n118,417,276\n"
LINE = '{{"timestamp": {0}, "input_length": {1}, "output_length": {2}}}\n'
WITH_HASHES = '{{"timestamp": {0}, "input_length": {1}, "output_length": 4, "hash_ids": {2}}}\n'


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (OWN, [(0, 472, 18), (113, 417, 276)]),
        (LINE.format(0, 10, '5, "hash_ids": null'), [(0, 10, 5)]),
        (LINE.format(5, 10, 5) + LINE.format(1505, 20, 6), [(0, 10, 5), (1.5, 20, 6)]),
    ],
)
def test_a_file_is_read(text: str, wanted: list[tuple[float, int, int]], tmp_path: Path) -> None:
    assert read(tmp_path, text)[0] == wanted
    form = MOONCAKE if text.startswith("{") else None
    assert len(traces.read_trace(tmp_path / "trace", 1, form=form)) == 1


def test_the_shipped_trace_is_small_and_its_licence_is_stated() -> None:
    (path,) = (ROOT / "labs" / "shared" / "traces").glob("*.[cj]s*")
    assert path.stat().st_size <= 100_000 and len(traces.read_trace(path, form=MOONCAKE)) == 412
    assert path.stem in (path.parent / "README.md").read_text() and path.stem in (ROOT / "NOTICE").read_text()


@pytest.mark.parametrize("sample", traces.SAMPLES.values(), ids=traces.SAMPLES)
def test_the_beginning_of_each_form_that_an_error_shows_is_known(sample: str, tmp_path: Path) -> None:
    if sample.startswith("{"):
        assert len(read(tmp_path, sample)[0]) == 1
        return
    with lab_error("trace-unreadable") as header_alone:
        read(tmp_path, sample)
    assert header_alone.value.why == "it has no request"


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["", "1e999", "0x10", "\ud800"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=3,
)


@HERE
@given(
    form=st.sampled_from(FORMS), rows=ROWS, at=st.integers(0, 4), field=st.integers(0, 6), value=JSON, cut=st.booleans()
)
def test_a_wrong_field_is_refused_with_its_line_and_name_in_our_words(
    tmp_path: Path, form: str, rows: list[tuple[int, int, int]], at: int, field: int, value: Any, cut: bool
) -> None:
    """Whatever stands there, or nothing, or a row that is cut short: it is read as before, or refused."""
    assume(not re.search("[\n\r\ud800]", str(value)))
    found = records(form, rows)
    at %= len(found)
    if cut:
        lines = saved(form, found).splitlines()
        where = at + (form == "own")
        lines[where] = lines[where][: len(lines[where]) // 2]
        text = "\n".join(lines) + "\n"
    else:
        found[at] = {**found[at], [*found[at]][field % len(found[at])]: value}
        text = saved(form, found)
    try:
        read(tmp_path, text)
    except LabError as refused:
        assert refused.code == "trace-unreadable"
        assert not PYTHONS_WORDS.search(refused.why), refused.why
        assert re.match(r"line \d+: |none of its|it has no request", refused.why), refused.why


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "line 1: it begins like no format"),
        ("time,tokens\n1,2\n", "line 1: it begins like no format"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,374,44\n", "line 1: it begins like no format"),
        pytest.param("[" * 10**5, "line 1: it begins like no format", id="deep"),
        pytest.param('{"hash_ids": ' + "[" * 10**5, "line 1: ", id="deep in a line"),
        pytest.param("x" * 2**21, "line 1: it is too long", id="long"),
        (LINE.format(0, 4, 1) + "[1]\n", "line 2: "),
        (LINE.format(0, -4, 1), "line 1: a number is out of range"),
        (LINE.format(0, "1e99", 1), "line 1: "),
        (LINE.format("NaN", 4, 1), "line 1: "),
        (LINE.format(0, "true", 1), "line 1: input_length is True, and no number"),
        (LINE.format(0, 1.5, 1), "line 1: input_length is 1.5, and no whole number"),
        (LINE.format(0, 1, '1, "hash_ids": 7'), "line 1: hash_ids is not a list"),
        ('{"timestamp": 0, "input_length": 4}\n', "line 1: it has no output_length"),
        (OWN + "120,3\n", "line 5: it has no output_tokens"),
        (OWN + "120,3,0.5\n", "line 5: "),
        (OWN + "\n120,3,4,5\n", "line 6: it has more cells"),
        (OWN.splitlines()[0] + "\n1,10,0\n", "none of its 1 requests has an answer"),
    ],
)
def test_a_damaged_trace_is_refused_with_its_line(text: str, said: str, tmp_path: Path) -> None:
    with lab_error("trace-unreadable") as error:
        read(tmp_path, text)
    assert error.value.why.startswith(said)


def shared(one: Any, other: Any) -> int:
    """How many tokens from the beginning two prompts have in common."""
    pairs = (
        (one.prefixes[at : at + HASH_BYTES], other.prefixes[at : at + HASH_BYTES])
        for at in range(0, min(one.prompt, other.prompt) * HASH_BYTES, HASH_BYTES)
    )
    same = [first == second for first, second in pairs]
    assert True not in same[sum(same) :], "what is shared is the beginning"
    return sum(same)


@pytest.mark.parametrize("block", [512, 64, 16])
def test_prompts_share_the_blocks_whose_hashes_are_equal(block: int, tmp_path: Path) -> None:
    rows = [WITH_HASHES.format(0, 2 * block - 1, [7, n]) for n in (8, 9)]
    (tmp_path / "trace").write_text("".join(rows))
    assert shared(*traces.read_trace(tmp_path / "trace", form=traces.MooncakeForm(block, "ms"))) == block


# -- what a file does not say, or says twice ---------------------------------------------------------------------------


def test_the_unit_and_the_block_size_of_a_mooncake_trace_are_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(WITH_HASHES.format(0, 640, [*range(10)]) + WITH_HASHES.format(2.5, 640, [*range(10)]))
    with lab_error("trace-unit-missing", "--unit"):
        traces.read_trace(path)
    with lab_error("trace-block-size-missing", "64 to 71"):
        traces.read_trace(path, form=traces.MooncakeForm(unit="s"))
    assert [one.at for one in traces.read_trace(path, form=traces.MooncakeForm(64, "s"))] == [0, 2.5]
    assert [one.at for one in traces.read_trace(path, form=traces.MooncakeForm(64, "ms"))] == [0, 0.0025]
    path.write_text(LINE.format(0, 640, 4))
    assert traces.read_trace(path, form=traces.MooncakeForm(unit="s")), "no hashes, no blocks"


@pytest.mark.parametrize(
    ("length", "ids", "said"),
    [
        (640, 10, "line 2: 10 hash_ids are not the blocks of 512 of 640 tokens"),
        (1024, 1, "line 2: 1 hash_ids .* blocks of 1024 or more tokens fit it"),
        (50, 2, "line 2: 2 hash_ids .* blocks of 25 to 49 tokens fit it"),
        (2, 3, "line 2: 3 hash_ids .* blocks of no length fit it"),
    ],
)
def test_hashes_that_are_not_as_many_as_the_prompt_has_blocks_are_refused(
    length: int, ids: int, said: str, tmp_path: Path
) -> None:
    with lab_error("trace-unreadable") as error:
        read(tmp_path, WITH_HASHES.format(0, 512, [0]) + WITH_HASHES.format(5, length, [*range(ids)]))
    assert re.match(said, error.value.why)


@pytest.mark.parametrize("text", [OWN + "3,40,18\n", WITH_HASHES.format(5, 5, [0]) + WITH_HASHES.format(4, 5, [0])])
def test_a_request_that_came_before_the_one_above_it_is_refused(text: str, tmp_path: Path) -> None:
    with lab_error("trace-unreadable") as error:
        read(tmp_path, text)
    assert re.match(r"line [25]: it came (115|0.001) s before the request above it", error.value.why)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("arrival_s,prompt_tokens,output_tokens,priority\n0,1,1,2\n", "column 'priority'"),
        ("arrival_s,prompt_tokens,output_tokens,,delay\n0,1,1,,2\n", "column ''"),
        ("arrival_s,prompt_tokens,output_tokens,arrival_s\n0,1,1,2\n", "two columns have one name"),
        (LINE.format(0, 50, '1, "session_id": "a"'), "field 'session_id'"),
    ],
)
def test_a_column_that_may_change_what_a_row_means_is_refused_by_name(text: str, name: str, tmp_path: Path) -> None:
    with lab_error("trace-unreadable") as error:
        read(tmp_path, text)
    assert error.value.why.startswith("line 1: ") and name in error.value.why


def test_empty_columns_at_the_end_of_a_spreadsheet_are_none(tmp_path: Path) -> None:
    assert read(tmp_path, "arrival_s,prompt_tokens,output_tokens,,\n0,3,4,,\n") == ([(0, 3, 4)], 0)


def test_a_csv_has_neither_unit_nor_blocks(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text(OWN)
    with lab_error("trace-form-unknown", "--block-size"):
        traces.read_trace(tmp_path / "trace.csv", form=MOONCAKE)


def test_a_trace_is_described_with_its_span_and_rate(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text(OWN)
    assert traces.describe_trace(traces.read_trace(tmp_path / "trace.csv")) == "2 requests in 113 s, 0.0177 a second"


# -- what is written, and what is sent ---------------------------------------------------------------------------------


def test_a_mooncake_trace_comes_back_as_it_went_and_a_sixteenth_of_it_shares_a_sixteenth(tmp_path: Path) -> None:
    given = [
        {"timestamp": 0, "input_length": 1000, "output_length": 40, "hash_ids": [1, 2]},
        {"timestamp": 1500, "input_length": 600, "output_length": 5, "hash_ids": [1, 3]},
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in given))
    arrivals = traces.read_trace(path, form=MOONCAKE)
    traces.write_mooncake_trace(tmp_path / "again.jsonl", arrivals)
    assert [json.loads(line) for line in (tmp_path / "again.jsonl").read_text().splitlines()] == [
        {**line, "hash_ids": ids} for line, ids in zip(given, ([0, 1], [0, 2]), strict=True)
    ]
    small = traces.scale_lengths(arrivals)
    assert [(one.prompt, one.limit) for one in small] == [(63, 2), (38, 1)] and shared(*small) == 512 / 16


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_a_recording_becomes_a_trace_and_a_trace_another(ending: str, tmp_path: Path) -> None:
    recorded = made_up_recording()
    source, file = written(tmp_path, recorded), tmp_path / f"trace.{ending}"
    done = CliRunner().invoke(convert_command, [str(source), str(file)], catch_exceptions=False)
    assert done.exit_code == 0 and f"{len(recorded.arrivals)} requests in" in done.output
    form = MOONCAKE if ending == "jsonl" else None
    again = traces.read_trace(file, form=form)
    assert [(one.prompt, one.made) for one in again] == [(one.prompt, one.made) for one in recorded.arrivals]
    asked = ["--unit", "ms", "--block-size", "512"] if form else []
    done = CliRunner().invoke(convert_command, [str(file), str(tmp_path / "b.csv"), *asked], catch_exceptions=False)
    assert done.exit_code == 0 and len(traces.read_trace(tmp_path / "b.csv")) == len(again)


def test_a_prompt_that_is_known_in_part_shares_that_part_of_a_written_trace(tmp_path: Path) -> None:
    pair = [replace(one, prompt=1000) for one in some_requests(2)]
    begin = traces.hashes("shared", 600)
    traces.write_mooncake_trace(tmp_path / "trace.jsonl", [replace(one, prefixes=begin) for one in pair])
    assert shared(*traces.read_trace(tmp_path / "trace.jsonl", form=MOONCAKE)) == 512


def test_a_trace_of_an_unknown_ending_is_refused(tmp_path: Path) -> None:
    source = written(tmp_path, made_up_recording())
    done = CliRunner().invoke(convert_command, [str(source), str(tmp_path / "a.txt")])
    is_lab_error(done.exception, "trace-form-unknown", ".txt")


# -- datasets ---------------------------------------------------------------------------------------------------------


@HERE
@given(
    rows=st.lists(
        st.fixed_dictionaries({}, optional=dict.fromkeys(["input", "instruction", "output"], JSON)) | JSON,
        min_size=1,
        max_size=3,
    )
)
@example([{"input": "\ud800", "instruction": "Summarize.", "output": "x"}])
@example(["\ud800"])
@example(["a text", {"input": ["a"], "instruction": "Summarize.", "output": "x"}])
def test_a_dataset_holds_texts_or_is_refused_with_row_and_field(tmp_path: Path, rows: list[Any]) -> None:
    def is_text(value: Any) -> bool:
        return isinstance(value, str) and "\ud800" not in value

    path = tmp_path / "data.json"
    path.write_text(json.dumps(rows))
    for take, fields in ((dataset.load_dataset, 3), (workloads.prompts_from, 2)):
        names = ("input", "instruction", "output")[:fields]
        whole = [
            (isinstance(row, dict) and all(is_text(row.get(name)) for name in names)) or (fields == 2 and is_text(row))
            for row in rows
        ]
        if all(whole):
            prompts = [row if isinstance(row, str) else f"{row['input']} {row['instruction']}" for row in rows]
            assert [getattr(found, "prompt", found) for found in take(path)] == prompts
        else:
            with lab_error("dataset-unreadable", f"row {whole.index(False) + 1}") as refused:
                take(path)
            assert not PYTHONS_WORDS.search(refused.value.why)
