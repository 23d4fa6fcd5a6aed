"""The identity test's data and its ten rows."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from checkout import ROOT
from click.testing import CliRunner
from lab_errors import lab_error
from transformers import AutoTokenizer

from labctl.cli.main import cli
from labctl.labs import workloads
from labkit.client import dataset, identity
from labkit.client.ask import kind_of
from labkit.evidence.records import RequestRecord
from labsched.log.settings import HASH_BYTES
from labsched.replay.recording import Arrival

TINY = ROOT / "labs" / "shared" / "models" / "tiny-gpt2"  # sees 1,024 tokens


def words(text: str) -> int:
    return len(text.split())


def test_the_generated_prompts_have_the_published_means() -> None:
    items = dataset.make_articles(words)
    assert len(items) == 98
    assert sum(words(item.prompt) for item in items) / 98 == pytest.approx(799.66, abs=0.01)
    assert sum(item.output_tokens for item in items) / 98 == pytest.approx(41.49, abs=0.01)


@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_chat_answers_vary_far_more_than_their_prompts_and_are_as_much_shorter_as_a_quick_run_asks(
    scale: float,
) -> None:
    outputs = [item.output_tokens for item in dataset.make_chats(words, scale=scale)]
    assert sum(outputs) / 98 == pytest.approx(scale * 51, abs=0.01)
    assert 10 * sorted(outputs)[10] < max(outputs) <= scale * 512


@pytest.mark.parametrize("make", [dataset.make_articles, dataset.make_chats])
def test_one_seed_gives_one_workload(make: object) -> None:
    assert make(words, 10, seed=4) == make(words, 10, seed=4) != make(words, 10, seed=5)  # type: ignore[operator]


def test_a_users_file_gives_prompts_and_lengths_as_the_original_reads_it_and_a_key_that_is_missing_is_named(
    tmp_path: Path,
) -> None:
    file = tmp_path / "data.json"
    file.write_text(json.dumps([{"input": "a b", "instruction": "c", "output": "one two three"}]))
    assert dataset.load_dataset(file) == [dataset.Item("a b c", 3)]
    file.write_text('[{"input": "a"}]')
    with lab_error("dataset-unreadable", file, "instruction"):
        dataset.load_dataset(file)


def test_prompts_that_are_too_long_are_skipped() -> None:
    def letters(text: str) -> list[int]:
        return list(text.encode())

    items = [dataset.Item("abc", 1), dataset.Item("abcdef", 1)]
    assert [len(r.prompt) for r in identity.encode(items, letters, 4)] == [3]
    with lab_error("prompts-too-long", "2 tokens"):
        identity.encode(items, letters, 2)


def records() -> list[RequestRecord]:
    return [
        RequestRecord(f"r{i}", "m", "", end=float(i), responses=[(float(i), "")], input_tokens=10, tokens=2 * i)
        for i in range(1, 11)
    ]


def test_the_ten_rows_in_their_order_by_their_definitions() -> None:
    assert list(identity.identity_metrics(records()).items()) == [
        ("Requests/Sec", 1.0),
        ("OP tokens/sec", 11.0),
        ("Avg. latency (ms)", 5500.0),
        ("P99 latency (ms)", 10000.0),
        ("P90 latency (ms)", 9000.0),
        ("Avg. IP tokens per request", 10.0),
        ("Avg. OP tokens per request", 11.0),
        ("Avg. InFlight requests", 5.5),
        ("Total latency (ms)", 10000.0),
        ("Total requests", 10.0),
    ]


def test_the_csv_grows_by_one_line_per_run_under_one_header(tmp_path: Path) -> None:
    rows = identity.identity_metrics(records())
    for name in ("one", "two"):
        identity.append_identity_csv(tmp_path / "t.csv", {name: rows})
    assert [line.split(",")[0] for line in (tmp_path / "t.csv").read_text().splitlines()] == ["run", "one", "two"]


@pytest.mark.parametrize(("datatype", "kind"), [("UINT32", np.uint32), ("INT32", np.int32)])
def test_integers_are_sent_as_the_servers_release_wants_them_and_an_input_that_a_model_lacks_is_named(
    monkeypatch: pytest.MonkeyPatch, datatype: str, kind: type
) -> None:
    told = SimpleNamespace(inputs=[SimpleNamespace(name="request_output_len", datatype=datatype)])
    client = contextlib.nullcontext(SimpleNamespace(get_model_metadata=lambda *_, **__: told))
    monkeypatch.setattr("labkit.client.ask.grpcclient.InferenceServerClient", lambda *_, **__: client)
    kind_of.cache_clear()
    assert kind_of("h:1", "tensorrt_llm", "request_output_len") is kind
    with lab_error("input-missing", "max_tokens"):
        kind_of("h:1", "tensorrt_llm", "max_tokens")


def arrival(name: str, prompt: int, limit: int = 4, prefixes: str = "") -> Arrival:
    hashes = b"".join(ord(one).to_bytes(HASH_BYTES) for one in prefixes)
    return Arrival(name, float(name), 0, prompt, limit, limit, "length", prefixes=hashes)


def test_a_traces_prompt_has_its_number_of_tokens_and_equal_hashes_give_equal_words() -> None:
    trace = [arrival("1", 6, prefixes="abcdef"), arrival("2", 6, prefixes="abcxyz"), arrival("3", 80)]
    trace[2] = replace(trace[2], tenant="ann")
    (_, one), (_, two), (at, three) = workloads.trace_items(trace, str(TINY))
    assert (at, one.tenant, three.tenant) == (3.0, None, "ann")
    count = AutoTokenizer.from_pretrained(TINY).encode
    assert [len(count(item.prompt)) for item in (one, two, three)] == [6, 6, 80]
    assert one.prompt.split()[:3] == two.prompt.split()[:3] and one.prompt != two.prompt


def test_a_traces_requests_that_the_model_cannot_hold_are_left_out() -> None:
    assert [at for at, _ in workloads.trace_items([arrival("1", 1019), arrival("2", 1020)], str(TINY))] == [1.0]
    with lab_error("prompts-too-long"):
        workloads.trace_items([arrival("2", 1020)], str(TINY))


def test_a_trace_is_refused_for_a_model_whose_tokenizer_is_unknown() -> None:
    with lab_error("tokenizer-unknown"):
        workloads.trace_items([arrival("1", 4)], "")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--speed", "2"], "--speed is for --trace"),
        (["--trace", str(TINY / "config.json"), "--request-rate", "2"], "without --request-rate"),
        (["--trace", str(TINY / "README.md")], "cannot be read as a trace"),
    ],
)
def test_a_trace_that_cannot_be_sent_is_refused_before_a_server_starts(words: list[str], said: str) -> None:
    done = CliRunner().invoke(cli, ["bench", "inflight-batching", *words])
    assert done.exit_code in (1, 2)
    assert said in f"{done.output} {done.exception}"
