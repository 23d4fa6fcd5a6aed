"""BLIS's TraceV2: its rows are read, and a recording is written as its positional reader takes it."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from lab_errors import is_lab_error, lab_error
from recordings import SETTINGS, made_up_recording, some_requests, written

from labctl.cli.predict import predict_command
from labkit.predict import traces
from labsched.recording import HASH_BYTES, Recording


@pytest.fixture
def recorded() -> Recording:
    return made_up_recording()


# As `blis run` writes it: without vllm_priority, which it leaves out where no server was asked.
HEAD = (
    "request_id,client_id,tenant_id,slo_class,session_id,round_index,prefix_group,prefix_length,streaming,input_tokens,"
    "output_tokens,text_tokens,image_tokens,audio_tokens,video_tokens,reason_ratio,model,deadline_us,"
    "server_input_tokens,arrival_time_us,send_time_us,first_chunk_time_us,last_chunk_time_us,num_chunks,status,"
    "error_message,finish_reason\n"
)
ROWS = [
    "0,c,red,,s,0,docs,64,true,100,20,100,0,0,0,0,,0,170,5000000,0,0,0,20,ok,,length\n",
    "1,c,blue,,s,0,docs,64,true,36,7,36,0,0,0,0,,0,0,5500000,5600000,0,0,7,ok,,stop\n",
    "2,c,,,s,0,,0,true,50,9,50,0,0,0,0,,0,58,6000000,0,0,0,9,ok,,stop\n",
    "3,c,,,s,0,,0,true,50,0,50,0,0,0,0,,0,0,6100000,0,0,0,0,timeout,gone,\n",
]


def test_a_row_of_blis_has_its_group_and_the_servers_own_count(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(HEAD + "".join(ROWS))
    first, second, third = traces.read_trace(path)
    assert [one.prompt for one in (first, second, third)] == [64 + 100, 64 + 36, 58]
    assert [one.limit for one in (first, second, third)] == [20, 7, 9]
    assert [one.at for one in (first, second, third)] == pytest.approx([0, 0.6, 1.0])
    assert [one.tenant for one in (first, second)] == ["red", "blue"]
    shared = 64 * HASH_BYTES
    assert first.prefixes[:shared] == second.prefixes[:shared]
    assert first.prefixes[shared : shared + HASH_BYTES] != second.prefixes[shared : shared + HASH_BYTES]
    assert third.prefixes[:HASH_BYTES] != first.prefixes[:HASH_BYTES]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (ROWS[2].replace("50,0,0,0,0", "50,7,0,0,0"), "image_tokens"),
        (ROWS[0].replace(",64,", ",-64,"), "out of range"),
        (ROWS[0].replace(",100,20,", ",,20,"), "line 2: "),
        (ROWS[0].replace("docs,64,true,100,20", f"docs,{10**9},true,100,20"), "out of range"),
    ],
)
def test_a_row_that_cannot_be_sent_is_refused_with_its_line(row: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(HEAD + row)
    with lab_error("trace-unreadable") as error:
        traces.read_trace(path)
    assert said in error.value.why and "line 2" in error.value.why


def test_a_recording_goes_out_in_the_columns_that_blis_finds_by_place(recorded: Recording, tmp_path: Path) -> None:
    source = written(tmp_path, recorded)
    done = CliRunner().invoke(predict_command, [str(source), "--export", str(tmp_path / "trace.yaml")])
    assert done.exit_code == 0 and "trace.csv" in done.output
    header = yaml.safe_load((tmp_path / "trace.yaml").read_text())
    assert (header["trace_version"], header["time_unit"], header["mode"]) == (2, "microseconds", "real")
    names, *rows = csv.reader((tmp_path / "trace.csv").read_text().splitlines())
    assert names[:4] + names[5:] == HEAD.strip().split(",") and names[4] == "vllm_priority"
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
    assert again[1].prefixes[: 50 * HASH_BYTES] == again[2].prefixes[: 50 * HASH_BYTES]


def test_a_mooncake_export_is_read_again_with_the_same_lengths(recorded: Recording, tmp_path: Path) -> None:
    source = written(tmp_path, recorded)
    done = CliRunner().invoke(predict_command, [str(source), "--export", str(tmp_path / "trace.jsonl")])
    assert done.exit_code == 0
    again = traces.read_trace(tmp_path / "trace.jsonl")
    assert [(one.prompt, one.limit) for one in again] == [(one.prompt, one.made) for one in recorded.arrivals]


def test_an_export_of_an_unknown_ending_is_refused(recorded: Recording, tmp_path: Path) -> None:
    done = CliRunner().invoke(predict_command, [str(written(tmp_path, recorded)), "--export", str(tmp_path / "a.txt")])
    is_lab_error(done.exception, "trace-form-unknown", ".txt")
