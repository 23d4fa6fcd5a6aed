"""A learner's loop on a real server: edit, reload, restore."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from machinery import copy_of_the_checkout, found, labctl, started, taken_down
from own_stack import server_of

pytestmark = pytest.mark.xdist_group("learning")
MODEL = "model_repos/iterative/iterative-gpt2/1/model.py"
LINE = "            batch = self.choose(sequences)\n"
# Whether the first request of an execution has this text: not the tiny question that a reload asks.
ASKED = "b'{}' in pb_utils.get_input_tensor_by_name(sequences[0].request, 'text_input').as_numpy().ravel()[0]"
STUCK_S = 8.0  # an execution that takes longer is named


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A checkout of the learner's own, under git, as a clone is."""
    root = copy_of_the_checkout(tmp_path_factory.mktemp("learner") / "checkout")
    for command in (
        ["init", "-q"],
        ["add", "model_repos"],
        ["-c", "user.name=n", "-c", "user.email=e", "commit", "-qm", "s"],
    ):
        subprocess.run(["git", *command], cwd=root, check=True)
    try:
        yield root
    finally:
        taken_down(root)


@pytest.fixture(scope="module")
def up(desk: Path) -> Path:
    labctl("up", "iterative", "--runtime", "local", "--ports", "auto", root=desk, LABS_STUCK_S=f"{STUCK_S:g}")
    return desk


def served(root: Path) -> tuple[int, dict[str, set[int]]]:
    """The server's process, and of each Python model those that compute it."""
    record, server = found(root, "iterative"), server_of(root)
    assert record and server
    stubs: dict[str, set[int]] = {}
    for process in server.children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # one that a load left, and that ends just now
            words = " ".join(process.cmdline())
            for model in record.models:
                if f"/{model}/" in words:
                    stubs.setdefault(model, set()).add(process.pid)
    return server.pid, stubs


def ask(root: Path) -> str:
    return str(labctl("infer", "iterative", "-m", "iterative-gpt2", "-p", "The fox", "-o", "4", root=root, check=False))


def test_an_edit_is_told_reloaded_and_taken_back(up: Path) -> None:
    model = up / MODEL
    shipped = model.read_text()
    model.write_text(
        shipped.replace("def execute(self, requests):", "def execute(self, requests):\n        print('EDITED')")
    )
    again = labctl("up", "iterative", "--runtime", "local", root=up)
    assert f"edited, but not loaded (labctl reload iterative):\n  {MODEL}" in again.stdout
    pid = json.loads(labctl("status", "iterative", "--json", root=up).stdout)["endpoints"]
    assert labctl("reload", "iterative", root=up).stdout.strip() == "loaded: iterative-gpt2"
    answer = ask(up)
    assert "returncode=0" in answer
    assert "EDITED" in labctl("logs", "iterative", root=up).stdout
    assert json.loads(labctl("status", "iterative", "--json", root=up).stdout)["endpoints"] == pid
    model.write_text(shipped)
    assert labctl("reload", "iterative", root=up).stdout.strip() == "loaded: iterative-gpt2"
    assert "nothing was edited" in labctl("reload", "iterative", root=up).stdout


@contextmanager
def edit(root: Path, before: str, after: str) -> Iterator[int]:
    """The model with one line replaced, for the time of a block; the number of the first new line."""
    model = root / MODEL
    shipped = model.read_text()
    assert shipped.count(before) == 1
    model.write_text(shipped.replace(before, after))
    try:
        yield shipped[: shipped.index(before)].count("\n") + 1
    finally:
        model.write_text(shipped)


def test_an_exception_in_an_execution_is_told_with_type_message_and_the_edited_line(up: Path) -> None:
    """Not at the tiny question that a reload asks, but at this prompt."""
    guilty = f"            if sequences and {ASKED.format('fox')}:\n                {{}}['b']\n"
    with edit(up, LINE, guilty + LINE) as number:
        labctl("reload", "iterative", root=up)
        asked = labctl("infer", "iterative", "-m", "iterative-gpt2", "-p", "A fox", "-o", "4", root=up, check=False)
        assert "KeyError: 'b'" in asked.stderr and f"{MODEL}({number + 1}): execute" in asked.stderr
        assert "Traceback" not in asked.stderr
    labctl("reload", "iterative", root=up)


def test_status_and_results_name_the_edited_files(up: Path) -> None:
    with edit(up, "self.running.close()", "self.running.close()  # one"):
        [told] = json.loads(labctl("status", "iterative", "--json", root=up).stdout)["edited"]
        assert told == {"model": "iterative-gpt2", "file": MODEL, "loaded": False}
        labctl("reload", "iterative", root=up)
        [told] = json.loads(labctl("status", "iterative", "--json", root=up).stdout)["edited"]
        assert told == {"model": "iterative-gpt2", "file": MODEL, "loaded": True}
        assert MODEL in labctl("status", "iterative", root=up).stdout
        bench = labctl(
            "bench", "iterative", "--request-count", "2", "--concurrency", "1", "--output", "r.json", root=up
        )
        assert f"edited: {MODEL}" in bench.stdout
        assert json.loads((up / "r.json").read_text())["edited"] == [MODEL]
    labctl("reload", "iterative", root=up)
    assert json.loads(labctl("status", "iterative", "--json", root=up).stdout)["edited"] == []


def test_a_reload_loads_the_edited_model_alone_into_the_server_that_runs(up: Path) -> None:
    """Why it takes seconds: benchmarks/start_up.py measures them."""
    server, before = served(up)
    with edit(up, "self.running.close()", "self.running.close()  # two"):
        labctl("reload", "iterative", root=up)
    labctl("reload", "iterative", root=up)
    assert served(up)[0] == server
    changed = {model for model, stub in served(up)[1].items() if before[model] != stub}
    assert set(before) == {"simple-gpt2", "iterative-gpt2"} and changed == {"iterative-gpt2"}


def test_fault_25_a_syntax_error_is_told_in_the_edited_file_and_the_old_model_serves_on(up: Path) -> None:
    model = up / MODEL
    shipped = model.read_text()
    model.write_text(shipped + "\ndef broken(:\n")
    try:
        refused = labctl("reload", "iterative", root=up, check=False)
        assert refused.returncode == 1
        assert "SyntaxError" in refused.stderr and f"line {len(shipped.splitlines()) + 2}" in refused.stderr
        assert "labctl reload iterative" in refused.stderr
        assert "Traceback" not in refused.stderr
        assert "returncode=0" in ask(up)
    finally:
        model.write_text(shipped)


def test_a_restart_for_a_file_that_cannot_be_read_is_refused_and_the_server_serves_on(up: Path) -> None:
    server, _ = served(up)
    with edit(up, "    def finalize(self):", "    def finalize(self:") as number:
        refused = labctl("restart", "iterative", root=up, check=False)
    assert refused.returncode == 1
    assert "SyntaxError" in refused.stderr and f"({MODEL}, line {number}" in refused.stderr
    assert f"git restore {MODEL}" in refused.stderr and "Traceback" not in refused.stderr
    assert served(up)[0] == server and "returncode=0" in ask(up)


def test_an_edit_that_loads_and_then_fails_leaves_the_former_model_serving(up: Path) -> None:
    with edit(up, LINE, f"            {{}}['b']\n{LINE}") as number:
        refused = labctl("reload", "iterative", root=up, check=False)
        assert "KeyError: 'b'" in refused.stderr and f"{MODEL}({number})" in refused.stderr
        assert "returncode=0" in ask(up)


def test_fault_25_an_endless_execution_is_named_to_who_waits_and_by_status(up: Path) -> None:
    """Whose model, since when, at which line; and `restart` after the edit serves again."""
    endless = (
        f"            while sequences and {ASKED.format('LOOP')}:\n                __import__('time').sleep(0.1)\n"
    )
    with edit(up, LINE, endless + LINE) as number:
        labctl("reload", "iterative", root=up)
        asking = ["infer", "iterative", "-m", "iterative-gpt2", "-p", "LOOP", "-o", "4"]
        with started(up, *asking) as waiting:
            assert waiting.stderr
            said = waiting.stderr.readline()
            shown = json.loads(labctl("status", "iterative", "--json", root=up).stdout)
            told = labctl("status", "iterative", root=up).stdout
    at = (f"{MODEL}:{number}: ", f"{MODEL}:{number + 1}: ")
    for text in (said, *shown["stuck"], told):
        assert "iterative-gpt2 has not come back from one execution since" in text
        assert any(place in text for place in at), text
    assert shown["state"] == "stalled" and shown["stuck"]
    assert "cancelled" not in told and "went away" not in told and "labctl restart iterative" in told
    labctl("restart", "iterative", root=up)
    assert "returncode=0" in ask(up)


def test_a_syntax_error_ends_the_start_as_soon_as_triton_has_seen_it(up: Path) -> None:
    """While another model still loads: only the log can tell by then."""
    labctl("down", "iterative", root=up)
    slow = up / "model_repos/iterative/simple-gpt2/1/model.py"
    shipped = slow.read_text()
    slow.write_text(
        shipped.replace(
            "    def initialize(self, args):", "    def initialize(self, args):\n        __import__('time').sleep(3600)"
        )
    )
    try:
        with edit(up, "    def finalize(self):", "    def finalize(self:") as number:
            waits = ("--timeout", "3600")  # for the other model: longer than a test waits for labctl
            refused = labctl("up", "iterative", "--runtime", "local", "--ports", "auto", *waits, root=up, check=False)
        assert refused.returncode == 1
        assert "SyntaxError" in refused.stderr and f"({MODEL}, line {number}" in refused.stderr
        assert "git restore FILE puts a shipped file back" in refused.stderr
    finally:
        slow.write_text(shipped)
