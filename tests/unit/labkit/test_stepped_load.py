"""A stepped load: what counts and what does not, who is asked, and that nothing is averaged after a failure."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import grpc
import pytest
from fake_triton import FakeTriton, serve
from grpc_here import grpc_serving
from waiting import DEADLINE_S, eventually

from labkit.client import stepped
from labkit.client.metrics import ModelCounters, Snapshot
from labkit.client.stepped import Scrape, Stage, SteppedLoad
from labkit.evidence import loadplot
from labkit.evidence.records import RequestRecord

COUNTERS = """\
nv_inference_request_success{model="m",version="1"} 7
nv_inference_count{model="m",version="1"} 7
nv_inference_exec_count{model="m",version="1"} 2
nv_inference_pending_request_count{model="m",version="1"} 0
"""
# Locust changes the standard library for gevent: only a process of its own may import it.
CHILD = """
import json, sys
from labkit.client.locust_users import TritonHttpUser
import gevent
import numpy as np
from labkit.errors import LabError
from labkit.client import stepped

def payload(input_class, output_class):
    text = input_class("text", [1], "BYTES")
    text.set_data_from_numpy(np.array([b"hello"], dtype=np.object_))
    return [text], [output_class("answer")]

scrape, watched = stepped.metrics.scrape, []

def miss_the_first_second(endpoint):
    if isinstance(gevent.getcurrent(), gevent.Greenlet) and not watched:
        watched.append(True)
        raise LabError("the metrics endpoint does not answer", code="metrics-silent")
    return scrape(endpoint)

stepped.SCRAPE_S, stepped.metrics.scrape = 0.2, miss_the_first_second
endpoint = sys.argv[1]
users = [type("User", (TritonHttpUser,), {"host": f"http://{endpoint}", "model": "m", "payloads": [payload]})]
try:
    load = stepped.run_stepped_load(users, [1, 3], 0.3, 0.5, endpoint, 5, lambda text: None)
    rows = [[step.users, len(step.latencies_ms), step.ended - step.began] for step in load.stages]
    times = [scrape.at for scrape in load.scrapes]
    tokens = load.records[0].output_tokens
    print(json.dumps({"steps": rows, "records": len(load.records), "tokens": tokens, "at": times}))
except LabError as error:
    print(json.dumps({"what": error.what, "why": error.why}))
"""


def record(start: float, end: float) -> RequestRecord:
    return RequestRecord("1", "m", "", start=start, end=end, responses=[(end, "")], tokens=8)


def counted(requests: float, executions: float, queue_us: float) -> Snapshot:
    made = ModelCounters(succeeded=requests, inferences=requests, exec_count=executions, queue_us=queue_us)
    return Snapshot({"m": made})


def a_load() -> SteppedLoad:
    """Two seconds under load, then a server that works off the rest."""
    scrapes = [
        Scrape(100.0, 0, counted(10, 10, 0)),
        Scrape(101.0, 2, counted(14, 11, 8_000)),
        Scrape(102.0, 4, counted(20, 13, 14_000)),
        Scrape(105.0, 0, counted(22, 14, 20_000)),
    ]
    ends = [100.4, 100.8, 101.2, 101.4, 101.9, 104.0]
    return SteppedLoad([], scrapes, [record(end - 0.2, end) for end in ends])


def test_each_second_has_its_own_answers_batches_and_queue_times() -> None:
    first, second = a_load().seconds("m")
    assert (first["t"], first["users"], first["requests_per_second"]) == (1.0, 2, 2.0)
    assert (second["t"], second["users"], second["requests_per_second"]) == (2.0, 4, 3.0)
    assert (first["mean_batch"], second["mean_batch"]) == (4.0, 3.0)
    assert (first["queue_ms"], second["queue_ms"]) == (2.0, 1.0)
    assert second["p50"] == pytest.approx(200)


def test_the_whole_load_counts_what_was_asked_before_its_end_and_answered_after() -> None:
    assert a_load().counted().models["m"].inferences == 12


def test_a_steps_rate_is_over_its_own_time() -> None:
    assert Stage(4, 10.0, 12.0, Snapshot(), [5.0] * 30).requests_per_second == 15.0


def test_the_picture_has_a_column_for_each_length_and_is_written_whole(tmp_path: Path) -> None:
    seconds = a_load().seconds("m")
    columns = {"8 tokens": {"with": seconds, "without": seconds}, "32 tokens": {"with": seconds}}
    loadplot.draw_load_steps(columns, tmp_path / "p.png", "title")
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in tmp_path.iterdir()] == ["p.png"]


def test_the_picture_of_users_has_a_point_for_each_number_of_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from matplotlib.axes import Axes

    drawn: list[tuple[list[int], list[float]]] = []
    plot = Axes.plot

    def noted(self: Axes, users: list[int], means: list[float], *rest: Any, **style: Any) -> Any:
        drawn.append((users, means))
        return plot(self, users, means, *rest, **style)

    monkeypatch.setattr(Axes, "plot", noted)
    rows = [{"users": u, "requests_per_second": rate, "p95": 10.0 * u} for u, rate in ((10, 4.0), (10, 6.0), (20, 9.0))]
    loadplot.draw_by_users({"dynamic batching": rows}, tmp_path / "u.png", "title")
    assert drawn == [([10, 20], [5.0, 9.0]), ([10, 20], [100.0, 200.0])]
    assert [path.name for path in tmp_path.iterdir()] == ["u.png"]


def generate(status: int, body: str) -> tuple[Any, list[str]]:
    """What a load on a server that answers so is made into, and the paths that were asked."""
    fake = FakeTriton()
    fake.metrics, fake.answers = COUNTERS, {"/v2/models/m/infer": (status, body)}
    with serve(fake) as endpoint:
        argv = [sys.executable, "-c", CHILD, endpoint]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), fake.calls


def test_users_ask_again_and_again_for_a_whole_step_and_the_warm_up_is_left_out() -> None:
    def asked_again() -> tuple[Any, list[str]] | None:
        """A load in which each step was long enough for that, on a machine with other work."""
        found, calls = generate(200, "{}")
        return (found, calls) if all(answers > users for users, answers, _ in found["steps"]) else None

    found, calls = eventually(asked_again)
    assert [users for users, _, _ in found["steps"]] == [1, 3]
    assert all(seconds >= 0.3 for _, _, seconds in found["steps"])
    assert sum(answers for _, answers, _ in found["steps"]) < found["records"] <= len(calls)
    assert found["tokens"] == 5


def test_a_second_in_which_the_counters_cannot_be_read_leaves_the_others_as_they_are() -> None:
    # Of 1.6 s there are several, besides the first and the last, where the load has a processor.
    eventually(lambda: len(generate(200, "{}")[0]["at"]) > 3)


def test_one_failure_is_enough_for_nothing_to_be_averaged() -> None:
    found, _ = generate(400, '{"error": "no luck today"}')
    assert "requests failed; nothing is averaged" in found["what"]
    assert "no luck today" in found["why"]


def test_a_step_lasts_until_there_is_an_answer() -> None:
    fake, later, scrapes = FakeTriton(), threading.Event(), itertools.count(1)

    class Late(dict[str, tuple[int, str]]):
        def get(self, *key: Any) -> Any:
            later.wait(DEADLINE_S)
            return super().get(*key)

    fake.metrics, fake.answers = COUNTERS, Late()
    fake.on_metrics = lambda: later.set() if next(scrapes) == 8 else None  # type: ignore[method-assign]
    with serve(fake) as endpoint:
        argv = [sys.executable, "-c", CHILD, endpoint]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)
    found = json.loads(done.stdout.splitlines()[-1])
    assert all(answers for _, answers, _ in found["steps"])


def test_a_models_counters_go_into_a_result_with_what_follows_from_them() -> None:
    row = stepped.counters(
        ModelCounters(succeeded=4, inferences=8, exec_count=2, queue_us=8_000, compute_infer_us=4_000)
    )
    assert (row["mean_batch"], row["queue_ms"], row["compute_ms"]) == (4.0, 2.0, 1.0)


WAITING = """
import sys
from labkit.client.locust_users import TritonGrpcUser
import gevent, grpc
from locust.env import Environment

class User(TritonGrpcUser):
    host, model, payloads = sys.argv[1], "m", []

users = [User(Environment()) for _ in range(30)]
for user in users:
    user.connect()
waiting = [gevent.spawn(user.send, b"") for user in users]
other = grpc.insecure_channel(sys.argv[1])
while int(other.unary_unary("/test/count", None, None)(b"")) < len(users):
    gevent.sleep(0.01)
other.unary_unary("/test/release", None, None)(b"")
gevent.joinall(waiting)
print(sum(greenlet.value for greenlet in waiting))
"""


class Holding(grpc.GenericRpcHandler):
    """Counts the requests that it has, and answers none until it is told to."""

    def __init__(self) -> None:
        self.lock, self.released = threading.Lock(), threading.Event()
        self.seen = 0

    def service(self, details: Any) -> Any:
        answers = {"count": lambda: str(self.seen).encode(), "release": self.release, "ModelInfer": self.hold}
        answer = answers[details.method.rpartition("/")[2]]
        return grpc.unary_unary_rpc_method_handler(lambda request, context: answer())

    def hold(self) -> bytes:
        with self.lock:
            self.seen += 1
        self.released.wait(DEADLINE_S)
        return b"x"

    def release(self) -> bytes:
        self.released.set()
        return b""


def test_users_who_wait_for_an_answer_keep_nobody_else_from_asking() -> None:
    holding = Holding()
    with grpc_serving(lambda server: server.add_generic_rpc_handlers((holding,)), threads=40) as endpoint:
        argv = [sys.executable, "-c", WAITING, endpoint]
        try:
            done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)
        finally:
            holding.release()
    assert (done.stdout, done.stderr) == ("30\n", "")
