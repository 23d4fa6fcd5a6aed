"""Traces and datasets as people have them: read whatever a spreadsheet made of them, or refused with line and field."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from lab_errors import is_lab_error, lab_error
from recordings import SETTINGS, made_up_recording, some_requests, written

from labctl.cli.predict import predict_command
from labkit.errors import LabError
from labkit.predict import blis, traces
from labkit.workloads import bench, dataset
from labsched.recording import HASH_BYTES, Recording

HERE = settings(max_examples=60)
PYTHONS_WORDS = re.compile(r"NoneType|argument|operand|iterable|object is|Error|codec|int\(\)|literal|subscript")
ROW = st.tuples(st.integers(0, 10**6), st.integers(1, 4000), st.integers(0, 400))  # ms, prompt, answer
ROWS = st.lists(ROW, min_size=1, max_size=5).filter(lambda rows: any(row[2] for row in rows))
JSON_LINES = ("mooncake", "bailian")
FORMS = ("own", "azure", "burstgpt", "blis", *JSON_LINES)


def records(form: str, rows: list[tuple[int, int, int]]) -> list[dict[str, Any]]:
    """The rows as the format's own fields."""
    if form == "own":
        return [dict(zip(traces.OWN, (at / 1000, *rest), strict=True)) for at, *rest in rows]
    if form == "azure":
        when = [f"2023-11-16 18:{at // 60000:02}:{at / 1000 % 60:010.7f}" for at, _, _ in rows]
        return [dict(zip(traces.AZURE, (at, *row[1:]), strict=True)) for at, row in zip(when, rows, strict=True)]
    if form == "burstgpt":
        return [dict(zip(traces.BURSTGPT, (at / 1000, *rest), strict=True)) for at, *rest in rows]
    if form == "blis":
        names = ("arrival_time_us", "input_tokens", "output_tokens")
        plain = {**dict.fromkeys(blis.COLUMNS, ""), "status": "ok"}
        return [{**plain, **dict(zip(names, (at * 1000, *rest), strict=True))} for at, *rest in rows]
    more, unit = ({"chat_id": 1}, 1000) if form == "bailian" else ({}, 1)
    return [
        {"timestamp": at / unit, "input_length": p, "output_length": a, "hash_ids": [1], **more} for at, p, a in rows
    ]


def saved(form: str, found: list[dict[str, Any]], chance: random.Random | None = None) -> str:
    """The text of a file; by chance its columns are in another order, and it is in quotes, with CRLF, with gaps."""
    end = chance.choice(["\n", "\r\n"]) if chance else "\n"
    quoted = bool(chance and chance.random() < 0.5)
    if form in JSON_LINES:
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
    found = traces.read_trace(path, left_out=left.append)
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


AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
)
BURSTGPT = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,0,1087,Conversation log
118,GPT-4,417,276,693,Conversation log
"""
# As `blis run` writes it: without vllm_priority, which it leaves out where no server was asked.
BLIS = (
    "request_id,client_id,tenant_id,slo_class,session_id,round_index,prefix_group,prefix_length,streaming,input_tokens,"
    "output_tokens,text_tokens,image_tokens,audio_tokens,video_tokens,reason_ratio,model,deadline_us,"
    "server_input_tokens,arrival_time_us,send_time_us,first_chunk_time_us,last_chunk_time_us,num_chunks,status,"
    "error_message,finish_reason\n"
)
ROWS_OF_BLIS = [
    "0,c,red,,s,0,docs,64,true,100,20,100,0,0,0,0,,0,170,5000000,0,0,0,20,ok,,length\n",
    "1,c,blue,,s,0,docs,64,true,36,7,36,0,0,0,0,,0,0,5500000,5600000,0,0,7,ok,,stop\n",
    "2,c,,,s,0,,0,true,50,9,50,0,0,0,0,,0,58,6000000,0,0,0,9,ok,,stop\n",
    "3,c,,,s,0,,0,true,50,0,50,0,0,0,0,,0,0,6100000,0,0,0,0,timeout,gone,\n",
]
PUBLISHED = {
    "azure": (AZURE, [(0, 374, 44), (4.315, 396, 109)]),
    "burstgpt, without the request that failed": (BURSTGPT, [(0, 472, 18), (113, 417, 276)]),
    "blis, with what its group shares and the server's count": (
        BLIS + "".join(ROWS_OF_BLIS),
        [(0, 164, 20), (0.6, 100, 7), (1, 58, 9)],
    ),
    "mooncake, without hashes": ('{"timestamp":0,"input_length":10,"output_length":5,"hash_ids":null}\n', [(0, 10, 5)]),
}


@pytest.mark.parametrize(("text", "wanted"), PUBLISHED.values(), ids=PUBLISHED)
def test_a_published_file_is_read(text: str, wanted: list[tuple[float, int, int]], tmp_path: Path) -> None:
    assert read(tmp_path, text)[0] == wanted
    assert len(traces.read_trace(tmp_path / "trace", 1)) == 1


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
        where = at + (form not in JSON_LINES)
        lines[where] = lines[where][: len(lines[where]) // 2]
        text = "\n".join(lines) + "\n"
    else:
        found[at] = {**found[at], [*found[at]][field % len(found[at])]: value}
        text = saved(form, found)
    try:
        read(tmp_path, text)
    except LabError as refused:
        assert not PYTHONS_WORDS.search(refused.why), refused.why
        assert re.match(r"line \d+: |none of its|it has no request", refused.why), refused.why


MOONCAKE = '{{"timestamp": {0}, "input_length": {1}, "output_length": {2}}}\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "line 1: it begins like no format"),
        ("time,tokens\n1,2\n", "line 1: it begins like no format"),
        pytest.param("[" * 10**5, "line 1: it begins like no format", id="deep"),
        pytest.param('{"hash_ids": ' + "[" * 10**5, "line 1: ", id="deep in a line"),
        pytest.param("x" * 2**21, "line 1: it is too long", id="long"),
        (MOONCAKE.format(0, 4, 1) + "[1]\n", "line 2: "),
        (MOONCAKE.format(0, -4, 1), "line 1: a number is out of range"),
        (MOONCAKE.format(0, "1e99", 1), "line 1: "),
        (MOONCAKE.format("NaN", 4, 1), "line 1: "),
        (MOONCAKE.format(0, "true", 1), "line 1: input_length is True, and no number"),
        (MOONCAKE.format(0, 1.5, 1), "line 1: input_length is 1.5, and no whole number"),
        (MOONCAKE.format(0, 1, '1, "hash_ids": 7'), "line 1: hash_ids is not a list"),
        ('{"timestamp": 0, "input_length": 4}\n', "line 1: it has no output_length"),
        (AZURE + "yesterday,3,4\n", "line 4: TIMESTAMP is 'yesterday', and no time"),
        (AZURE + "2023-11-16 18:15:50,3\n", "line 4: it has no GeneratedTokens"),
        (AZURE.splitlines()[0] + "\n2023-11-16 18:17:03,10,0\n", "none of its 1 requests has an answer"),
        (BURSTGPT + "1,x,0.5,2,3,y\n", "line 5: "),
        (BLIS + ROWS_OF_BLIS[2].replace("50,0,0,0,0", "50,7,0,0,0"), "line 2: image_tokens"),
        (BLIS + ROWS_OF_BLIS[0].replace(",64,", ",-64,"), "line 2: a number is out of range"),
        (BLIS + ROWS_OF_BLIS[0].replace(",64,", f",{10**9},"), "line 2: a number is out of range"),
        (BLIS + ROWS_OF_BLIS[0].replace(",100,20,", ",,20,"), "line 2: "),
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


@pytest.mark.parametrize(("more", "block"), [({}, 512), ({"chat_id": 1}, 16)])
def test_prompts_share_the_blocks_whose_hashes_are_equal(more: dict[str, int], block: int, tmp_path: Path) -> None:
    rows = [{"timestamp": 0, "input_length": 1000, "output_length": 4, "hash_ids": [7, n], **more} for n in (8, 9)]
    (tmp_path / "trace").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert shared(*traces.read_trace(tmp_path / "trace")) == block


def test_requests_of_a_group_of_blis_share_its_prefix_and_tenants_are_kept(tmp_path: Path) -> None:
    (tmp_path / "trace").write_text(BLIS + "".join(ROWS_OF_BLIS))
    first, second, third = traces.read_trace(tmp_path / "trace")
    assert (shared(first, second), shared(first, third)) == (64, 0)
    assert (first.tenant, second.tenant) == ("red", "blue")


def test_a_mooncake_trace_comes_back_as_it_went_and_a_sixteenth_of_it_shares_a_sixteenth(tmp_path: Path) -> None:
    given = [
        {"timestamp": 0, "input_length": 1000, "output_length": 40, "hash_ids": [1, 2]},
        {"timestamp": 1500, "input_length": 600, "output_length": 5, "hash_ids": [1, 3]},
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in given))
    arrivals = traces.read_trace(path)
    traces.write_mooncake_trace(tmp_path / "again.jsonl", arrivals)
    assert [json.loads(line) for line in (tmp_path / "again.jsonl").read_text().splitlines()] == [
        {**line, "hash_ids": ids} for line, ids in zip(given, ([0, 1], [0, 2]), strict=True)
    ]
    small = traces.scale_lengths(arrivals)
    assert [(one.prompt, one.limit) for one in small] == [(63, 2), (38, 1)] and shared(*small) == 512 / 16


# -- what is written --------------------------------------------------------------------------------------------------


def test_a_recording_goes_out_in_the_columns_that_blis_finds_by_place(tmp_path: Path) -> None:
    recorded = made_up_recording()
    source = written(tmp_path, recorded)
    done = CliRunner().invoke(predict_command, [str(source), "--export", str(tmp_path / "trace.yaml")])
    assert done.exit_code == 0 and "trace.csv" in done.output
    header = yaml.safe_load((tmp_path / "trace.yaml").read_text())
    assert (header["trace_version"], header["time_unit"], header["mode"]) == (2, "microseconds", "real")
    names, *rows = csv.reader((tmp_path / "trace.csv").read_text().splitlines())
    assert names[:4] + names[5:] == BLIS.strip().split(",") and names[4] == "vllm_priority"
    assert len(rows) == len(recorded.arrivals)
    for row, arrival in zip(rows, recorded.arrivals, strict=True):  # the places are those of parseTraceRecord
        prefix, prompt, answer, arrived, first, last, chunks = (int(row[at]) for at in (8, 10, 11, 20, 22, 23, 24))
        assert prefix + prompt == arrival.prompt and answer == chunks == arrival.made
        assert arrived <= first <= last
        assert (row[9], row[25], row[27]) == ("true", "ok", "length")
        assert arrived == round((arrival.at - recorded.arrivals[0].at) * 1e6)


def test_what_a_group_shares_survives_writing_and_reading(tmp_path: Path) -> None:
    alone, *pair = some_requests(3)
    pair = [replace(one, prompt=size) for one, size in zip(pair, (90, 70), strict=True)]
    begin = traces.hashes("shared", 0, 50)
    pair = [replace(one, prefixes=begin + traces.hashes(one.name, 50, one.prompt)) for one in pair]
    traces.export(tmp_path / "trace.yaml", Recording(SETTINGS, [alone, *pair]))
    rows = {row["request_id"]: row for row in csv.DictReader((tmp_path / "trace.csv").read_text().splitlines())}
    assert [rows[n]["prefix_length"] for n in "012"] == ["0", "50", "50"]
    again = traces.read_trace(tmp_path / "trace.csv")
    assert [one.prompt for one in again] == [alone.prompt, 90, 70]
    assert (shared(again[1], again[2]), shared(again[0], again[1])) == (50, 0)


def test_an_export_of_an_unknown_ending_is_refused(tmp_path: Path) -> None:
    source = written(tmp_path, made_up_recording())
    done = CliRunner().invoke(predict_command, [str(source), "--export", str(tmp_path / "a.txt")])
    is_lab_error(done.exception, "trace-form-unknown", ".txt")


@pytest.mark.night
def test_made_up_agents_share_as_many_tokens_as_the_published_ones() -> None:
    made = traces.scale_lengths(traces.agents(400, seed=3))
    seen: set[bytes] = set()
    cached = 0
    for one in made:
        beginnings = [hashlib.sha256(one.prefixes[: n * HASH_BYTES]).digest() for n in range(1, one.prompt + 1)]
        cached += sum(beginning in seen for beginning in beginnings)
        seen.update(beginnings)
    tokens = sum(one.prompt for one in made)
    assert cached / tokens == pytest.approx(0.86, abs=0.02)
    assert tokens / sum(one.limit for one in made) == pytest.approx(128, rel=0.1)
    assert max(one.prompt + one.limit for one in made) < 1024
    assert [one.at for one in made] == sorted(one.at for one in made)
    assert traces.agents(40, seed=3) == traces.agents(40, seed=3) != traces.agents(40, seed=4)


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
    for take, fields in ((dataset.load_dataset, 3), (bench.prompts_from, 2)):
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
