"""`labctl predict --run`: a recorded bench is predicted under another setting, run under it, and compared."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from machinery import labctl, processes_about

from labkit.predict import recording

pytestmark = pytest.mark.xdist_group("llm")
REQUESTS = 12
BENCH = (
    "bench",
    "inflight-batching",
    *("--set", "model=random:tiny-llama", "--set", "max_num_sequences=4"),
    *("--runtime", "local", "--ports", "auto", "--concurrency", "4", "--request-count", str(REQUESTS)),
    *("--output-tokens", "16"),
)


def test_a_bench_under_another_setting_is_predicted_run_and_compared_and_no_server_is_left(own: Path) -> None:
    labctl(*BENCH, root=own)
    (result,) = (own / "results").glob("05-*/*")
    done = labctl("predict", str(result), "--set", "max_num_sequences=2", "--run", "--json", root=own)
    document = json.loads(done.stdout)
    assert processes_about(own) == []
    assert document["recorded"]["mean_batch"] > 2 >= document["measured"]["mean_batch"]
    assert document["predicted"]["mean_batch"] <= 2
    assert set(document["error"]) <= set(document["measured"])
    assert document["parting"] is None or document["parting"]["step"] >= 1
    ran = recording.read(Path(document["folder"]))
    assert ran.settings.words["max_num_sequences"] == "2"
    assert sorted(one.limit for one in ran.arrivals) == sorted(one.made for one in recording.read(result).arrivals)


def test_a_recording_that_does_not_say_its_settings_is_refused_before_a_server_starts(own: Path) -> None:
    labctl(*BENCH, root=own)
    (result,) = (own / "results").glob("05-*/*")
    for context in result.glob("context-*.json"):
        context.unlink()
    done = labctl("predict", str(result), "--set", "max_num_sequences=2", "--run", root=own, check=False)
    assert done.returncode == 1
    assert "does not say how its server was set" in done.stderr
    assert processes_about(own) == []
