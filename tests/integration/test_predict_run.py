"""`labctl bench` as a recording: a trace is sent as it is, and `predict --run` predicts, runs and compares."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from machinery import labctl, processes_about
from waiting import eventually

from labctl.recordings import prediction
from labsched.log.settings import HASH_BYTES
from labsched.replay import recording

pytestmark = [pytest.mark.night, pytest.mark.xdist_group("llm")]
REQUESTS = 12
BENCH = (
    "bench",
    "inflight-batching",
    *("--set", "model=random:tiny-llama", "--set", "max_num_sequences=4", "--set", "max_num_tokens=16"),
    *("--runtime", "local", "--ports", "auto"),
    *("--concurrency", "4", "--request-count", str(REQUESTS), "--output-tokens", "16"),
)


def test_a_bench_under_another_setting_is_predicted_run_and_compared_and_no_server_is_left(own: Path) -> None:
    # A prompt that goes in pieces: its first step is as large as a step can be, and none is larger than recorded.
    (own / "one.json").write_text(json.dumps([" ".join(["Once upon a time there was"] * 5)]))
    labctl(*BENCH, "--dataset", str(own / "one.json"), root=own)
    (result,) = (own / "results").glob("05-*/*")
    done = labctl("predict", str(result), "--set", "max_num_sequences=2", "--run", "--json", root=own)
    document = json.loads(done.stdout)
    assert processes_about(own) == []
    assert document["measured"]["mean_batch"] <= 2
    assert document["predicted"]["mean_batch"] <= 2
    assert set(document["error"]) <= set(document["measured"])
    assert document["parting"] is None or document["parting"]["step"] >= 1
    ran = recording.read_recording(Path(document["folder"]))
    assert ran.settings.words["max_num_sequences"] == "2"
    assert sorted(one.limit for one in ran.arrivals) == sorted(
        one.made for one in recording.read_recording(result).arrivals
    )
    folder = Path(document["folder"])
    assert prediction.read_prediction(folder) == document
    assert f"![predicted and measured]({prediction.PICTURE})" in (folder / "report.md").read_text()
    assert (folder / prediction.PICTURE).is_file()
    compared = labctl("compare", str(folder), root=own).stdout
    assert f"{document['error']['e2e_mean_ms']:+.1%}" in compared and "noise floor" in compared


def test_a_recording_that_does_not_say_its_settings_is_refused_before_a_server_starts(own: Path) -> None:
    (own / "one.json").write_text('["Once upon a time there was"]')
    labctl(*BENCH, "--dataset", str(own / "one.json"), root=own)
    eventually(lambda: not processes_about(own))  # those of the measurement
    (result,) = (own / "results").glob("05-*/*")
    for context in result.glob("context-*.json"):
        context.unlink()
    done = labctl("predict", str(result), "--set", "max_num_sequences=2", "--run", root=own, check=False)
    assert done.returncode == 1
    assert "does not say how its server was set" in done.stderr
    assert processes_about(own) == []


def test_a_trace_is_sent_with_its_lengths_in_its_order(own: Path) -> None:
    lines = [  # every length over 16, as the server counts them; the last is too long for the model
        {"timestamp": 0, "input_length": 1600, "output_length": 128, "hash_ids": [1, 2, 3, 4]},
        {"timestamp": 600, "input_length": 1600, "output_length": 64, "hash_ids": [1, 2, 3, 9]},
        {"timestamp": 1200, "input_length": 400, "output_length": 32, "hash_ids": [7]},
        {"timestamp": 1800, "input_length": 40_000, "output_length": 32, "hash_ids": list(range(80))},
    ]
    (own / "trace.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = labctl(*BENCH[:10], "--trace", str(own / "trace.jsonl"), "--speed", "2", root=own)
    assert "do not fit in the model's context, and are not sent: 1" in done.stdout
    (result,) = (own / "results").glob("05-*/*")
    ran = recording.read_recording(result).arrivals
    assert [one.made for one in ran] == [8, 4, 2]
    assert [one.prompt for one in ran] == [100, 100, 25]
    assert [one.at for one in ran] == sorted(one.at for one in ran)
    shared = 90 * HASH_BYTES  # of 96 tokens in three blocks
    assert ran[0].prefixes[:shared] == ran[1].prefixes[:shared]
