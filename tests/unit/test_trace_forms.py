"""Traces and datasets as people have them: read whatever a spreadsheet made of them, or refused with line and field."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from lab_errors import lab_error

from labkit.errors import LabError
from labkit.predict import blis, traces
from labkit.workloads import bench, dataset

HERE = settings(max_examples=60)
PYTHONS_WORDS = re.compile(r"NoneType|argument|operand|iterable|object is|Error|codec|int\(\)|literal|subscript")
ROW = st.tuples(st.integers(0, 10**6), st.integers(1, 4000), st.integers(0, 400))  # ms, prompt, answer
ROWS = st.lists(ROW, min_size=1, max_size=5).filter(lambda rows: any(row[2] for row in rows))
FORMS = ["mooncake", "bailian", "azure", "burstgpt", "blis"]


def records(form: str, rows: list[tuple[int, int, int]]) -> list[dict[str, Any]]:
    """The rows as the format's own fields."""
    if form == "azure":
        when = [f"2023-11-16 18:{at // 60000:02}:{at / 1000 % 60:010.7f}" for at, _, _ in rows]
        return [dict(zip(traces.AZURE, (at, *row[1:]), strict=True)) for at, row in zip(when, rows, strict=True)]
    if form == "burstgpt":
        return [dict(zip(traces.BURSTGPT, (at / 1000, *rest), strict=True)) for at, *rest in rows]
    if form == "blis":
        plain = dict.fromkeys(blis.COLUMNS, "")
        return [
            {
                **plain,
                "request_id": n,
                "input_tokens": p,
                "output_tokens": a,
                "arrival_time_us": at * 1000,
                "status": "ok",
            }
            for n, (at, p, a) in enumerate(rows)
        ]
    more = {"chat_id": 1} if form == "bailian" else {}
    unit = 1000 if form == "bailian" else 1
    return [
        {"timestamp": at / unit, "input_length": p, "output_length": a, "hash_ids": [1], **more} for at, p, a in rows
    ]


def written(form: str, found: list[dict[str, Any]], quoting: int = csv.QUOTE_MINIMAL, end: str = "\n") -> str:
    if form in ("mooncake", "bailian"):
        return "".join(json.dumps(record) + end for record in found)
    out = io.StringIO()
    writer = csv.DictWriter(out, [*found[0]], quoting=quoting, lineterminator=end)  # type: ignore[arg-type]
    writer.writeheader()
    writer.writerows(found)
    return out.getvalue()


def read(folder: Path, text: str, encoding: str = "utf-8") -> tuple[list[tuple[float, int, int]], int]:
    """What is read of a trace, and how many rows were left out."""
    path, left = folder / "trace", [0]
    path.write_bytes(text.encode(encoding))
    found = traces.read_trace(path, left_out=left.append)
    return [(round(one.at, 3), one.prompt, one.limit) for one in found], left[-1]


@HERE
@given(
    form=st.sampled_from(FORMS),
    rows=ROWS,
    mark=st.booleans(),
    quoted=st.booleans(),
    end=st.sampled_from(["\n", "\r\n"]),
)
def test_a_trace_is_the_same_however_it_was_saved(
    tmp_path: Path, form: str, rows: list[tuple[int, int, int]], mark: bool, quoted: bool, end: str
) -> None:
    found = records(form, rows)
    if quoted and form in ("mooncake", "bailian"):
        found = [
            {key: str(value) if isinstance(value, int | float) else value for key, value in r.items()} for r in found
        ]
    text = written(form, found, csv.QUOTE_ALL if quoted else csv.QUOTE_MINIMAL, end)
    start = min(at for at, _, answer in rows if answer)
    expected = sorted((round((at - start) / 1000, 3), prompt, answer) for at, prompt, answer in rows if answer)
    got, left_out = read(tmp_path, text, "utf-8-sig" if mark else "utf-8")
    assert sorted(got) == expected
    assert left_out == sum(not answer for _, _, answer in rows)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["", "1e999", "0x10"]),
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
    found = records(form, rows)
    at %= len(found)
    text = written(form, found)
    if cut:
        lines = text.splitlines()
        where = at + (form not in ("mooncake", "bailian"))
        lines[where] = lines[where][: len(lines[where]) // 2]
        text = "\n".join(lines) + "\n"
        name = ""
    else:
        name = [*found[at]][field % len(found[at])]
        found[at] = {**found[at], name: value}
        text = written(form, found)
    assume("\n" not in str(value) and "\r" not in str(value))
    try:
        read(tmp_path, text, "utf-8")
    except LabError as refused:
        assert not PYTHONS_WORDS.search(refused.why), refused.why
        assert re.match(r"line \d+: |none of its|it has no request", refused.why), refused.why


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"timestamp":0,"input_length":10,"output_length":5,"hash_ids":null}\n', ""),
        ('{"timestamp":"0","input_length":"10","output_length":"5"}\n', ""),
        ('{"timestamp":0,"input_length":10,"output_length":5,"hash_ids":7}\n', "line 1: hash_ids is not a list"),
        ('{"timestamp":0,"input_length":true,"output_length":5}\n', "line 1: input_length is True, and no number"),
        ('{"timestamp":0,"input_length":1.5,"output_length":5}\n', "line 1: input_length is 1.5, and no whole number"),
        ('{"timestamp":0,"input_length":10}\n', "line 1: it has no output_length"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,10\n", "line 2: it has no GeneratedTokens"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,10,0\n", "none of its 1 requests has an answer"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nlater,10,1\n", "line 2: TIMESTAMP is 'later', and no time"),
    ],
)
def test_what_published_files_have(tmp_path: Path, text: str, said: str) -> None:
    if not said:
        assert read(tmp_path, text) == ([(0.0, 10, 5)], 0)
        return
    with lab_error("trace-unreadable") as refused:
        read(tmp_path, text)
    assert refused.value.why == said


@HERE
@given(
    rows=st.lists(
        st.fixed_dictionaries({}, optional=dict.fromkeys(["input", "instruction", "output"], JSON)) | JSON,
        min_size=1,
        max_size=3,
    )
)
def test_a_dataset_holds_texts_or_is_refused_with_row_and_field(tmp_path: Path, rows: list[Any]) -> None:
    path = tmp_path / "data.json"
    path.write_text(json.dumps(rows))
    texts = [
        isinstance(row, dict) and all(isinstance(row.get(k), str) for k in ("input", "instruction", "output"))
        for row in rows
    ]
    if all(texts):
        assert [item.prompt for item in dataset.load_dataset(path)] == [
            f"{row['input']} {row['instruction']}" for row in rows
        ]
    else:
        with lab_error("dataset-unreadable") as refused:
            dataset.load_dataset(path)
        assert f"row {texts.index(False) + 1}" in refused.value.why
        assert not PYTHONS_WORDS.search(refused.value.why)


@pytest.mark.parametrize("wrong", [None, ["a"], 7, True, {}, "\ud800"])
def test_what_is_no_text_never_becomes_a_prompt(tmp_path: Path, wrong: object) -> None:
    path = tmp_path / "data.json"
    for row in ({"input": wrong, "instruction": "Summarize.", "output": "x"}, wrong):
        path.write_text(json.dumps([row]))
        for take in (dataset.load_dataset, bench.prompts_from):
            with lab_error("dataset-unreadable"):
                take(path)
