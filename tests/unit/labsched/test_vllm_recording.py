"""The recorder for somebody's own vLLM, without vLLM: what is written is read whole, and no disk stops a server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import pytest
from checkout import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st
from lab_errors import lab_error
from waiting import DEADLINE_S, eventually

from labctl.pages.live import story
from labctl.pages.live.feed import FIELDS
from labctl.pages.live.hub import PageFollower, spell
from labctl.pages.live.replay import page_recording
from labkit.evidence.names import letter
from labsched.log.lines import REQUIRED_WORDS
from labsched.log.settings import SchedulerSettings
from labsched.plan import Because
from labsched.replay import recording
from labsched.replay.fitting import measure_device
from labsched.replay.vllm_arguments import own_arguments
from labsched.vllm import RecordingScheduler, files, reader
from labsched.vllm.decision import Decision
from labsched.vllm.files import FILES, Files
from labsched.vllm.recorder import FOLDER, Came, Ended, Landed, Lines, Notes, chosen_fields

WORDS = dict.fromkeys(REQUIRED_WORDS, "") | {"engine": "vllm"}
SETTINGS: dict[str, Any] = {
    **{"words": WORDS, "context": 512, "vocabulary": 1000, "blocks": 40, "block_size": 16, "step_tokens": 64},
    **{"own": None, "vllm": {"max_num_seqs": 4}, "hash_block_size": 16, "beyond": []},
}


class KeptDefault(NamedTuple):
    default: float
    init: bool | None = None


WATERMARK = KeptDefault(0.0)


@dataclass
class Configuration:
    """As vLLM's own: pydantic keeps a field's default in an object of its own."""

    max_num_seqs: int = 128
    watermark: Any = WATERMARK
    prefill_schedule_interval: int = 1
    max_num_queued_reqs: int | None = None
    encoder_cache_size: int = field(default=0, init=False)


def test_every_field_of_vllms_configuration_that_was_chosen_is_found_and_no_other() -> None:
    chosen = Configuration(max_num_seqs=4, watermark=0.0)
    assert chosen_fields(chosen) == {}, "the slots have a word of their own, and the others their defaults"
    chosen = Configuration(watermark=0.1, max_num_queued_reqs=9)
    chosen.encoder_cache_size = 2048  # vLLM derives it
    assert chosen_fields(chosen) == {"watermark": 0.1, "max_num_queued_reqs": 9}


def test_a_chosen_field_is_passed_on_to_vllm_as_it_was() -> None:
    words = {**WORDS, "watermark": "0.1", "max_num_queued_reqs": "9", "long_prefill_token_threshold_adaptive": "true"}
    settings = SchedulerSettings(words, 40, 16, 64, 512, 1000)
    adaptive = {"long_prefill_token_threshold_adaptive": True}
    assert own_arguments(settings) == {"watermark": 0.1, "max_num_queued_reqs": 9, **adaptive}


class Request:
    """The attributes of vLLM's `Request` that the recorder reads."""

    def __init__(self, id: str, prompt: int, limit: int) -> None:
        self.request_id, self.num_prompt_tokens, self.max_tokens, self.priority = id, prompt, limit, 0
        self.computed = self.num_output_tokens = 0
        self.reason = ""
        self.block_hashes = [bytes([len(id), number]) for number in range(prompt // 16)]

    def is_finished(self) -> bool:
        return bool(self.reason)

    def get_finished_reason(self) -> str:
        return self.reason


class Traffic:
    """Steps of a scheduler made up by chance: the events that the recorder notes, and what its log should say."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self.live: dict[str, Request] = {}
        self.wanted: list[dict[str, Any]] = []
        self.ended: dict[str, str] = {}
        self._came = 0
        self._pending: dict[str, str] = {}
        self._now = 100.0
        self._names: dict[str, str] = {}

    def events(self) -> list[Any]:
        """What happens from one step to the end of the next."""
        chance = self._chance
        found: list[Any] = []
        while chance.random() < 0.4:
            self._came += 1
            request = Request(f"client-{self._came}", chance.choice((1, 7, 40)), chance.randint(1, 6))
            self.live[request.request_id] = request
            self._names[request.request_id] = str(self._came)
            found.append(Came(request, self._now, 0.01))
        if self.live and chance.random() < 0.1:
            gone = self.live.pop(chance.choice([*self.live]))
            gone.reason = "abort"
            self._end(gone, "cancelled")
            found.append(Ended([gone.request_id, "unknown"], self._now))
        if running := [*self.live.values()][:4]:
            found.append(self._step(running))
        return found

    def _end(self, request: Request, why: str) -> None:
        self.ended[self._names[request.request_id]] = self._pending[self._names[request.request_id]] = why

    def _step(self, running: list[Request]) -> Landed:
        began, self._now = self._now, self._now + 0.01
        waiting = [*self.live][4:]
        tokens, made, phase = dict[str, int](), dict[str, int](), ""
        sequences: list[Any] = []
        admitted = {one.request_id: 0 for one in running if not one.computed}
        for one in running:
            whole = one.num_prompt_tokens + one.num_output_tokens
            sequences.append(([one.request_id], [one.computed], [one.num_output_tokens]))
            phase += "d" if one.num_output_tokens else "p"
            tokens[one.request_id] = min(16, whole - one.computed)
            one.computed += tokens[one.request_id]
            made[one.request_id] = int(one.computed == whole)
            one.num_output_tokens += made[one.request_id]
        outputs = []
        for one in running:
            if made[one.request_id]:
                over = one.num_output_tokens == one.max_tokens
                output = SimpleNamespace(request_id=one.request_id, new_token_ids=[0], finish_reason=None)
                outputs.append(output)
                if over:
                    output.finish_reason = one.reason = "length"
                    del self.live[one.request_id]
                    self._end(one, "length")
        because = Because("no slot") if waiting else Because()
        found = Decision(tokens, sequences, admitted, {}, waiting, len(waiting), [], because, 3, began)
        ids, waits = ([self._names[id] for id in those] for those in (tokens, waiting))
        each = {"ids": ids, "phase": phase, "tokens": [*tokens.values()], "made": [*made.values()]}
        self.wanted.append({**each, "waiting": waits, "ended": self._pending, "kv_blocks_used": 3})
        self._pending = {}
        return Landed(found, self._now, [outputs])


def drain(kept: Files) -> None:
    """Wait until all events were taken out."""
    deadline = time.monotonic() + DEADLINE_S
    while kept._events:
        assert time.monotonic() < deadline
        kept._wake.set()
        kept._wake.clear()


def opened(folder: Path, name: str = "vllm-20260101-000000000-1-0", most: int = 2**20) -> Files:
    lines = Lines(SETTINGS, "0")
    return Files(folder, name, lines.of, lines.begin, most)


def written(folder: Path, name: str, events: list[Any]) -> None:
    kept = opened(folder, name)
    for event in events:
        kept.add(event)
    kept.close()
    assert not kept.open


@settings(max_examples=40)
@given(st.integers(0, 2**32), st.integers(1, 120))
def test_every_step_and_every_request_is_read_as_it_happened(
    tmp_path_factory: pytest.TempPathFactory, seed: int, steps: int
) -> None:
    folder, traffic = tmp_path_factory.mktemp("recorded"), Traffic(seed)
    events = [event for _ in range(steps) for event in traffic.events()]
    written(folder, "vllm-20260101-000000000-1-0", events)
    lines = reader.read_vllm_recording(folder)
    seen = [line for line in lines if line["kind"] == "step"]
    names = ("ids", "phase", "tokens", "made", "waiting", "ended", "kv_blocks_used")
    empty: dict[str, Any] = {"waiting": [], "ended": {}}
    assert [{name: line.get(name, empty.get(name)) for name in names} for line in seen] == traffic.wanted
    ends = {line["name"]: line["why"] for line in lines if line["kind"] == "request"}
    assert {name: why for name, why in ends.items() if why != reader.UNFINISHED} == traffic.ended
    if ends and seen:
        read = recording.read_recording(folder)
        assert [row.ids for row in read.steps] == [line["ids"] for line in traffic.wanted]
        assert {arrival.name for arrival in (*read.arrivals, *read.pending)} == {*ends}
        idle = {name for row in read.steps if not row.busy for name in row.joined}
        assert read.way == pytest.approx(0.01 if idle & {*ends} else 0.0)


def test_no_text_no_token_and_no_plain_hash_is_written(tmp_path: Path) -> None:
    """Two requests with the same prompt show the same hash, which another recording does not."""
    found = []
    for name in ("vllm-20260101-000000000-1-0", "vllm-20260102-000000000-1-0"):
        requests = [Request(id, 32, 1) for id in ("a", "b")]
        events = [Came(one, 1.0, 0.0) for one in requests]
        for one in requests:
            one.reason = "stop"
        written(tmp_path, name, [*events, Ended(None, 2.0)])
        lines = reader.read_vllm_recording(tmp_path, name)
        (one, other) = (line["prefixes"] for line in lines if line["kind"] == "request")
        assert one == other and len(one) == 4 * 32  # three bytes a token, in base64
        found.append(one)
    assert found[0] != found[1]


def size_of(folder: Path) -> int:
    """Bytes in its files, of which the writer may remove some meanwhile."""
    found = 0
    for file in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):
            found += file.stat().st_size
    return found


def test_the_files_of_a_folder_stay_within_their_limit_and_the_rest_is_read(tmp_path: Path) -> None:
    """The oldest go; the requests that came after the first step that is left are all there."""
    traffic, most = Traffic(1), 80_000
    kept = opened(tmp_path, most=most)
    for _ in range(60):
        for _ in range(40):
            for event in traffic.events():
                kept.add(event)
        drain(kept)
        assert size_of(tmp_path) <= most * (1 + 2 / FILES)
    kept.close()
    assert not (tmp_path / "vllm-20260101-000000000-1-0.000001.jsonl").exists()
    read = recording.read_recording(tmp_path)
    seen = [row.ids for row in read.steps]
    assert seen and seen == [line["ids"] for line in traffic.wanted][-len(seen) :]
    assert len(read.arrivals) > 10


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The warnings in vLLM's log."""
    assert files.log.name.startswith("vllm.")
    found: list[str] = []
    monkeypatch.setattr(files.log, "warning", lambda text, *args: found.append(text % args))
    return found


@pytest.mark.parametrize("what", ["full", "read-only", "a file"])
def test_a_disk_that_takes_no_more_ends_the_recording_with_one_line_and_never_the_server(
    what: str, said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "labs"
    if what == "full":

        class Full(FileIO):
            def write(self, data: Any) -> int:
                raise OSError(28, "No space left on device")

        monkeypatch.setattr(files, "FileIO", Full)
    elif what == "read-only":
        monkeypatch.setattr(Path, "mkdir", lambda *args, **named: (_ for _ in ()).throw(OSError(30, "Read-only")))
    else:
        folder.write_text("")
    kept = opened(folder)
    notes = Notes(kept)
    kept._thread.join(DEADLINE_S)
    for number in range(1000):
        notes.came(Request(str(number), 5, 3))
    assert len(said) == 1 and str(folder) in said[0] and not kept.open and not kept._events


def test_an_error_of_the_recorder_ends_the_recording_and_not_the_step(said: list[str], tmp_path: Path) -> None:
    notes = Notes(opened(tmp_path))
    notes.decided(object(), object(), 0.0)  # another form of vLLM's
    notes.landed(object(), {})
    notes.close()
    assert len(said) == 1 and "AttributeError" in said[0]


def test_a_vllm_without_the_asynchronous_schedulers_module_is_recorded_by_its_only_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Scheduler:
        def __init__(self, config: Any) -> None:
            self.config = config

    for name in ("vllm", "vllm.v1", "vllm.v1.core", "vllm.v1.core.sched"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    module: Any = ModuleType("vllm.v1.core.sched.scheduler")
    module.Scheduler = Scheduler
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(sys.modules, "vllm.v1.core.sched.async_scheduler", None)
    monkeypatch.delenv(FOLDER, raising=False)
    for config in (SimpleNamespace(), SimpleNamespace(async_scheduling=False)):
        assert isinstance(RecordingScheduler(SimpleNamespace(scheduler_config=config)), Scheduler)


CHILD = """
import sys, time
from pathlib import Path
sys.path[:0] = sys.argv[2:]
from test_vllm_recording import Traffic, opened
kept, traffic = opened(Path(sys.argv[1])), Traffic(3)
while True:
    for event in traffic.events():
        kept.add(event)
    print(len(traffic.wanted), flush=True)
    time.sleep(0.01)
"""


def test_a_killed_server_has_lost_nothing_that_was_written_and_it_is_written_while_it_runs(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", CHILD, str(tmp_path), str(Path(__file__).parent), str(ROOT / "tests" / "helpers")]
    child = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert child.stdout
    while (made := int(child.stdout.readline())) < 200:
        pass

    def steps() -> int:
        return sum(line["kind"] == "step" for line in reader.read_vllm_recording(tmp_path))

    written = eventually(lambda: steps() >= made and steps())
    os.kill(child.pid, signal.SIGKILL)
    child.communicate()
    assert steps() >= written


def test_the_newest_recording_is_meant_and_another_is_named(tmp_path: Path) -> None:
    written(tmp_path, "vllm-20260101-000000000-1-0", Traffic(1).events())
    written(tmp_path, "vllm-20260102-000000000-1-0", Traffic(2).events())
    os.utime(tmp_path / "vllm-20260101-000000000-1-0.000001.jsonl", (1, 1))
    assert reader.latest_recording(tmp_path) == "vllm-20260102-000000000-1-0"
    (tmp_path / "vllm-20260103-000000000-1-0.000001.jsonl").symlink_to(tmp_path / "deleted-by-its-server")
    assert reader.latest_recording(tmp_path) == "vllm-20260102-000000000-1-0"
    (tmp_path / "vllm-20260103-000000000-1-0.000001.jsonl").unlink()
    with lab_error("phase-unknown", "vllm-3"):
        reader.read_vllm_recording(tmp_path, "vllm-3")


def test_a_recording_is_followed_while_it_is_written(tmp_path: Path) -> None:
    traffic, kept = Traffic(5), opened(tmp_path, most=60_000)
    seen: list[Any] = []
    tail: reader.RecordingTail | None = None
    while len(traffic.wanted) < 600:
        for event in [event for _ in range(10) for event in traffic.events()]:
            kept.add(event)
        drain(kept)
        tail = tail or reader.RecordingTail(tmp_path)
        seen += tail.read()
    kept.close()
    assert tail and len(reader.recordings_in(tmp_path)["vllm-20260101-000000000-1-0"]) > 2, "it went on in other files"
    seen += tail.read()
    steps = [line["ids"] for line in seen if line["kind"] == "step"]
    assert steps == [line["ids"] for line in traffic.wanted][-len(steps) :] and len(steps) > 100


def test_an_open_page_is_told_each_step_as_it_is_written_and_comes_anew_for_another_server(tmp_path: Path) -> None:
    traffic, kept = Traffic(5), opened(tmp_path)
    told: list[Any] = []

    async def hear() -> None:
        follower = PageFollower(tmp_path)
        running = asyncio.create_task(follower.run())
        queue, first, feed = follower.join()
        while (message := await asyncio.wait_for(queue.get(), 20)) is not None:
            told.extend(feed.events(message[0]))  # there was no recording before
        queue, first, feed = follower.join()
        assert first == spell([follower.head])
        for _ in range(3):
            for event in [event for _ in range(40) for event in traffic.events()]:
                kept.add(event)
            while sum("n" in event for event in told) < len(traffic.wanted):
                message = await asyncio.wait_for(queue.get(), 20)
                assert message is not None
                told.extend(feed.events(message[0]))
        written(tmp_path, "vllm-20260102-000000000-1-0", [event for _ in range(40) for event in Traffic(2).events()])
        while (message := await asyncio.wait_for(queue.get(), 20)) is not None:
            assert not message[0]
        running.cancel()

    asyncio.run(hear())
    kept.close()
    called = {id: name for event in told for _, id, _, name in event.get("q", ())}
    ids = [[*event["r"][::FIELDS]] for event in told if "n" in event]
    number = {id: index for event in told for index, id, *_ in event.get("q", ())}
    assert ids == [[number[name] for name in line["ids"]] for line in traffic.wanted]
    assert called == {name: letter(int(name) - 1) for name in called}, "as `labctl explain` calls them afterwards"


def test_a_recording_is_being_written_as_long_as_its_server_has_it_open(tmp_path: Path) -> None:
    kept = opened(tmp_path)
    assert eventually(lambda: size_of(tmp_path))
    (file,) = tmp_path.iterdir()
    assert reader.is_written(tmp_path), "a moment ago"
    os.utime(file, (1, 1))
    assert reader.is_written(tmp_path)
    kept.close()
    os.utime(file, (1, 1))
    assert not reader.is_written(tmp_path)


def test_a_busy_server_leaves_the_open_file_of_an_idle_one_in_the_same_folder(tmp_path: Path) -> None:
    idle_name, most = "vllm-20260101-000000000-1-0", 40_000
    idle, traffic = opened(tmp_path, idle_name, most), Traffic(1)
    assert eventually(lambda: size_of(tmp_path))
    busy, others = opened(tmp_path, "vllm-20260102-000000000-2-0", most), Traffic(2)
    while busy._number < 12:
        for event in [event for _ in range(40) for event in others.events()]:
            busy.add(event)
        drain(busy)
    for event in [event for _ in range(40) for event in traffic.events()]:
        idle.add(event)
    busy.close()
    idle.close()
    steps = [line["ids"] for line in reader.read_vllm_recording(tmp_path, idle_name) if line["kind"] == "step"]
    assert steps == [line["ids"] for line in traffic.wanted]


def test_an_open_file_that_a_person_deletes_is_followed_by_another(tmp_path: Path) -> None:
    kept, traffic = opened(tmp_path), Traffic(1)
    assert eventually(lambda: size_of(tmp_path))
    (tmp_path / "vllm-20260101-000000000-1-0.000001.jsonl").unlink()
    assert eventually(lambda: size_of(tmp_path))
    for event in [event for _ in range(40) for event in traffic.events()]:
        kept.add(event)
    kept.close()
    steps = [line["ids"] for line in reader.read_vllm_recording(tmp_path) if line["kind"] == "step"]
    assert steps == [line["ids"] for line in traffic.wanted]


def test_what_no_recorder_has_made_stays_in_the_folder_and_is_no_recording(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("a person's")
    foreign = [f"vllm-20250101-000000000-1-{number}.000001.jsonl" for number in range(3)]
    (tmp_path / foreign[0]).mkdir()
    (tmp_path / foreign[1]).symlink_to(tmp_path / "target")
    os.mkfifo(tmp_path / foreign[2])
    for name in ("vllm-notes.jsonl", "vllm-20250101-000000000-x-0.000001.jsonl", "vllm-.jsonl"):
        (tmp_path / name).write_bytes(b" " * 100_000)
        foreign.append(name)
        assert not reader.is_recording(tmp_path / name)
    kept, traffic = opened(tmp_path, most=20_000), Traffic(1)
    while kept._number < 12:
        for event in [event for _ in range(40) for event in traffic.events()]:
            kept.add(event)
        drain(kept)
    assert kept.open
    kept.close()
    assert {*foreign, "target"} <= {file.name for file in tmp_path.iterdir()}
    assert not (tmp_path / "vllm-20260101-000000000-1-0.000001.jsonl").exists()


HEAD = {"kind": "scheduler", "t": 1.0, "v": 2, "model": "vllm", "instance": "0", **SETTINGS}
SERVER = {"v": 2, "model": "vllm", "instance": "0"}
ENDED = {
    **{**SERVER, "kind": "request", "t": 2.0, "name": "1", "id": "a", "came": 1, "arrived": 1.0, "waited": 0.0},
    **{"after": 0, "prompt": 10, "limit": 4, "priority": 0, "made": 1, "why": "length", "left": 1, "word": False},
    **{"tenant": None, "resumable": True, "prefixes": "", "hashes": ""},
}
STEP = {
    **{**SERVER, "kind": "step", "n": 1, "t": 1.5, "dur": 0.1, "batch": 1, "ids": ["1"], "phase": "p"},
    **{"tokens": [10], "made": [1], "queue": 0, "ended": {"1": "length"}, "kv_blocks_used": 1},
}


def said_by_hand(folder: Path, *lines: dict[str, Any]) -> Path:
    file = folder / "vllm-20260101-000000000-1-0.000001.jsonl"
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return folder


@pytest.mark.parametrize(
    "lines",
    [
        ({**HEAD, "hash_block_size": 0}, STEP, ENDED),
        ({**HEAD, "hash_block_size": 2**40}, STEP, ENDED),
        ({**HEAD, "words": {**WORDS, "max_num_sequences": "x"}}, STEP, ENDED),
        ({**HEAD, "vllm": []}, STEP, ENDED),
        ({**HEAD, "beyond": 3}, STEP, ENDED),
        ({**HEAD, "beyond": [1]}, STEP, ENDED),
        ({**HEAD, "wall": 1e300}, STEP, ENDED),
        ({**HEAD, "wall": float("nan")}, STEP, ENDED),
        ({**HEAD, "words": {**WORDS, "watermark": "much"}}, STEP, ENDED),
        ({**HEAD, "vllm": {"gpu_memory_utilization": "all"}}, STEP, ENDED),
        ({**HEAD, "vllm": {"block_bytes": -1}}, STEP, ENDED),
        ({**HEAD, "model": None}, STEP, ENDED),
        (HEAD, {**STEP, "ids": ["x"]}, ENDED),
        (HEAD, {**STEP, "ended": {"-1": "length"}}, ENDED),
        (HEAD, {**STEP, "waiting": ["\ud800"]}, ENDED),
        (HEAD, {**STEP, "again": 5}, ENDED),
        (HEAD, STEP, {**ENDED, "name": "9" * 5000}),
        (HEAD, STEP, {**ENDED, "hashes": 7}),
        (HEAD, STEP, {**ENDED, "t": float("inf")}),
    ],
)
def test_a_line_that_the_recorder_cannot_have_written_is_refused_by_all_that_read_it(
    lines: tuple[dict[str, Any], ...], tmp_path: Path
) -> None:
    for read in (recording.read_recording, reader.read_vllm_recording, story.of_result, page_recording):
        with lab_error("step-log-damaged"):
            read(said_by_hand(tmp_path, *lines))


def test_a_recording_that_says_more_than_a_machine_can_hold_is_refused_before_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "_prefixes", lambda *_: pytest.fail("it was multiplied"))
    hashed = {**ENDED, "hashes": "A" * 32}
    with lab_error("recording-too-large"):
        reader.read_vllm_recording(said_by_hand(tmp_path, {**HEAD, "hash_block_size": 10**9}, STEP, hashed))
    monkeypatch.setattr(reader, "MOST", 100)
    again = {**SERVER, "kind": "step", "t": 2.0, "dur": 0.0, "batch": 1, "again": ["batch"], "kv_blocks_used": 1}
    first = {**STEP, "ended": {}}
    with lab_error("recording-too-large"):
        reader.read_vllm_recording(said_by_hand(tmp_path, HEAD, first, *({**again, "n": n} for n in range(2, 102))))


def test_of_a_recording_that_is_too_large_the_newest_files_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "MOST", 3)
    said_by_hand(tmp_path, HEAD, STEP, ENDED)
    first = tmp_path / "vllm-20260101-000000000-1-0.000001.jsonl"
    for number in (2, 3, 4):
        first.with_name(f"vllm-20260101-000000000-1-0.00000{number}.jsonl").write_bytes(first.read_bytes())
    lines = reader.read_vllm_recording(tmp_path)
    assert sum(line["kind"] == "step" for line in lines) == 3
    assert lines[0]["partial"]


def test_a_device_is_not_measured_by_times_that_a_recording_lacks(tmp_path: Path) -> None:
    read = recording.read_recording(said_by_hand(tmp_path, HEAD, STEP, ENDED))
    assert [row.engine_us for row in read.steps] == [None]
    with lab_error("device-unmeasured", "engine"):
        measure_device(read.steps)


def test_a_line_that_lacks_a_field_is_refused(tmp_path: Path) -> None:
    arrival = {"kind": "arrival", "t": 2.0, "id": "a"}
    with lab_error("step-log-damaged", "name"):
        reader.read_vllm_recording(said_by_hand(tmp_path, HEAD, {**SERVER, **arrival}))


def test_a_step_that_was_over_before_the_one_before_it_is_damage(tmp_path: Path) -> None:
    second = {**STEP, "n": 2, "t": 1.2}
    with lab_error("step-log-damaged", "'t'"):
        recording.read_recording(said_by_hand(tmp_path, HEAD, {**STEP, "ended": {}}, second, ENDED))


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    file = tmp_path / "vllm-20260101-000000000-1-0.000001.jsonl"
    file.write_text(json.dumps(HEAD) + '\n{"kind": "step"\n')
    with lab_error("step-log-damaged", file):
        reader.read_vllm_recording(tmp_path)
