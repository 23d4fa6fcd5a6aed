"""What `labctl run` gives to the client of a phase."""

import json
from pathlib import Path

from labkit.client.context import Context, load_context


def test_a_client_loads_the_context_that_was_written_for_it(tmp_path: Path) -> None:
    given = Context(
        "05-batching-policies",
        "inflight-batching",
        "v1",
        "cpu",
        "local",
        {"http": "127.0.0.1:1", "grpc": "127.0.0.1:2", "metrics": "127.0.0.1:3"},
        {"max_num_sequences": 8, "exact": True},
        True,
        tmp_path / "results",
        tmp_path / "run",
        "",
        {"1": {"http": "127.0.0.1:4"}},
    )
    given.write(tmp_path / "context-v1.json")
    loaded = load_context(str(tmp_path / "context-v1.json"))
    assert {**vars(loaded), "began": 0} == {**vars(given), "began": 0}
    assert list(json.loads((tmp_path / "context-v1.json").read_text())) == (
        "lab stack phase profile runtime endpoints settings quick out run_dir tokenizer_dir replicas".split()
    )
