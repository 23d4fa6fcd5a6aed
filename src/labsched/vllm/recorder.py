"""The recording of vLLM's scheduler: which events of it are noted, and the lines that come of them.

The lines are those of the labs' step log (docs/develop/step-log.md), written in a thread. In vLLM's own thread a step
costs a copy of a few lists. Lengths, times, hashes of blocks and reasons are written; never a text or a token's id.
"""

import base64
import hashlib
import os
import secrets
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from labsched.vllm import files
from labsched.vllm.decision import Decision, InFlight, decision, shared
from labsched.vllm.files import Files, Line

FOLDER = "LABS_RECORD"
MODEL = "vllm"
VERSION = 2  # of the step log
MOST_WAITING = 64  # names of those who wait; their number is in `queue`
HASH_BYTES = 6  # of each block
LONGEST_WAIT_S = 3600.0  # between vLLM's own time of arrival and the scheduler; more is another kind of time
WHYS = {"stop": "stop", "length": "length", "abort": "cancelled", "error": "failed", "repetition": "stop"}
ARGUMENTS = ("long_prefill_token_threshold", "watermark", "scheduler_reserve_full_isl")  # also decide about steps


class Came(NamedTuple):
    """A request has come to the scheduler."""

    id: str
    at: float  # monotonic seconds
    waited: float  # seconds since vLLM's front end received it
    prompt: int
    limit: int
    priority: int


class Left(NamedTuple):
    """A request has ended, whichever way."""

    id: str
    at: float
    why: str
    made: int
    hashes: Any  # vLLM's, of each full block


class Landed(NamedTuple):
    """The result of a step has come: how many tokens each request has got, and which have ended with it."""

    decision: Decision
    over: float  # monotonic seconds
    made: dict[str, int]
    left: list[Left]


def recording(kind: Any, folder: str) -> Any:
    """A subclass of a scheduler class of vLLM which records into `folder`; with "" it records nothing.

    No error of a recording reaches vLLM: it ends the recording, with one line in vLLM's log.
    """

    class Recording(kind):  # type: ignore[misc]
        def __init__(self, *args: Any, **named: Any) -> None:
            super().__init__(*args, **named)
            self._noted: Notes | None = None
            try:
                self._noted = Notes.of(self, folder)
            except Exception as error:
                files.log.warning("nothing is recorded: %s: %s", type(error).__name__, error)

        def add_request(self, request: Any) -> None:
            known = request.request_id in self.requests  # the next part of a session
            super().add_request(request)
            if self._noted and not known:
                self._noted.came(request)

        def schedule(self, *args: Any, **named: Any) -> Any:
            began = time.monotonic()
            output = super().schedule(*args, **named)
            if self._noted:
                self._noted.decided(self, output, began)
            return output

        def update_from_output(self, output: Any, *args: Any, **named: Any) -> Any:
            results = super().update_from_output(output, *args, **named)
            if self._noted:
                self._noted.landed(output, results)
            return results

        def finish_requests(self, *args: Any, **named: Any) -> Any:
            found = super().finish_requests(*args, **named)
            if self._noted:
                self._noted.finished()
            return found

        def shutdown(self) -> None:
            super().shutdown()
            if self._noted:
                self._noted.close()

    return Recording


def _guarded(method: Any) -> Any:
    """A method whose errors end the recording."""

    def guarded(self: Any, *args: Any) -> None:
        try:
            if self.files.open:
                method(self, *args)
            else:
                self.forget()
        except Exception as error:
            self.files.stop(f"{type(error).__name__}: {error}")

    return guarded


class Notes:
    """Takes notes in vLLM's thread."""

    def __init__(self, written: Files, lines: "Lines") -> None:
        self.files, self.lines = written, lines
        self._live: dict[str, Any] = {}  # vLLM's requests
        self._in_flight = InFlight()
        self._head: tuple[str, int] = "", 0  # the request for which shared blocks were counted, and how many
        weakref.finalize(self, written.close)

    @classmethod
    def of(cls, scheduler: Any, folder: str) -> "Notes | None":
        """For a scheduler that was made. Raises what vLLM's configuration and the environment raise."""
        if not folder:
            files.log.warning("nothing is recorded: set %s to a folder", FOLDER)
            return None
        rank = int(getattr(scheduler.parallel_config, "data_parallel_rank", 0) or 0)
        lines = Lines(head(scheduler), str(rank))
        written = Files(Path(folder), files.named(rank), lines.of, lines.begin, files.most_bytes())
        files.log.info("recording each step of the scheduler into %s", folder)
        return cls(written, lines)

    @_guarded
    def came(self, request: Any) -> None:
        self._live[request.request_id] = request
        waited = time.time() - float(getattr(request, "arrival_time", 0.0))
        waited = waited if 0.0 <= waited < LONGEST_WAIT_S else 0.0
        prompt, limit = int(request.num_prompt_tokens), int(request.max_tokens)
        self.files.add(Came(request.request_id, time.monotonic(), waited, prompt, limit, int(request.priority)))

    @_guarded
    def decided(self, scheduler: Any, output: Any, began: float) -> None:
        self._in_flight.add(output, decision(scheduler, output, began, MOST_WAITING, self._shared))

    @_guarded
    def landed(self, output: Any, results: Any) -> None:
        over = time.monotonic()
        made, left = {}, []
        for each in results.values():
            for one in each.outputs:
                made[one.request_id] = len(one.new_token_ids)
                if one.finish_reason is not None:
                    left += self._left(one.request_id, str(one.finish_reason))
        self.files.add(Landed(self._in_flight.take(output), over, made, left))

    @_guarded
    def finished(self) -> None:
        """Requests were ended from outside of a step."""
        for id in [id for id, request in self._live.items() if request.is_finished()]:
            for left in self._left(id, str(self._live[id].get_finished_reason())):
                self.files.add(left)

    def _left(self, id: str, reason: str) -> list[Left]:
        """[] for a request whose end is noted already."""
        if (request := self._live.pop(id, None)) is None:
            return []
        hashes = getattr(request, "block_hashes", ())
        return [Left(id, time.monotonic(), WHYS.get(reason, reason), int(request.num_output_tokens), hashes)]

    def _shared(self, scheduler: Any, request: Any) -> int:
        """Counted once while a request is the first: it costs the more the longer its prompt is."""
        if self._head[0] != request.request_id:
            self._head = request.request_id, shared(scheduler, request)
        return self._head[1]

    def forget(self) -> None:
        """The recording has ended: vLLM's objects are not kept."""
        self._live.clear()
        self._in_flight.steps.clear()

    def close(self) -> None:
        self.files.close()


def head(scheduler: Any) -> dict[str, Any]:
    """The settings of a scheduler, as the step log's line `scheduler` has them, and vLLM's own words for them."""
    import vllm

    config, cache = scheduler.scheduler_config, scheduler.cache_config
    model = scheduler.vllm_config.model_config
    blocks, size = int(cache.num_gpu_blocks) - 1, int(scheduler.block_size)  # without the null block
    own = {
        "max_num_seqs": int(scheduler.max_num_running_reqs),
        "max_num_batched_tokens": int(config.max_num_batched_tokens),
        "num_gpu_blocks": blocks + 1,
        "block_size": size,
        "max_model_len": int(scheduler.max_model_len),
        "enable_chunked_prefill": bool(config.enable_chunked_prefill),
        "enable_prefix_caching": bool(cache.enable_prefix_caching),
        "scheduling_policy": str(getattr(config.policy, "value", config.policy)),
        "async_scheduling": bool(config.async_scheduling),
        "gpu_memory_utilization": float(cache.gpu_memory_utilization),
    }
    own |= {name: value for name in ARGUMENTS if (value := getattr(config, name, None)) is not None}
    words = {
        "engine": MODEL,
        "gpt_model_type": "inflight_fused_batching",
        "batch_scheduler_policy": "max_utilization",
        "max_num_sequences": own["max_num_seqs"],
        "max_tokens_in_paged_kv_cache": blocks * size,
        "max_num_tokens": own["max_num_batched_tokens"],
        "enable_chunked_context": own["enable_chunked_prefill"],
        "enable_kv_cache_reuse": own["enable_prefix_caching"],
        "speculation": "draft" if scheduler.vllm_config.speculative_config else "none",
        "scheduling": own["scheduling_policy"],
        "async_scheduling": own["async_scheduling"],
        **dict.fromkeys(("pace", "pace_shape", "pace_slower", "gather_microseconds"), ""),
        **{name: own[name] for name in ARGUMENTS if name in own},
    }
    return {
        "words": {name: str(value).lower() for name, value in words.items()},
        "context": own["max_model_len"],
        "vocabulary": int(model.get_vocab_size()),
        "blocks": blocks,
        "block_size": size,
        "step_tokens": own["max_num_batched_tokens"],
        "own": "",
        "vllm": {"version": vllm.__version__, **own},
        "hash_block_size": int(getattr(scheduler, "hash_block_size", size)),
        "beyond": _beyond(scheduler),
        "wall": time.time() - time.monotonic(),  # seconds between the log's time and the clock's
    }


def _beyond(scheduler: Any) -> list[str]:
    """What this server does and a replay of its scheduler does not: the batches would be others."""
    config = scheduler.vllm_config
    found = {
        "KV caches of several kinds": len(scheduler.kv_cache_config.kv_cache_groups) != 1,
        "a KV connector": config.kv_transfer_config is not None,
        "LoRA adapters": config.lora_config is not None,
        "an encoder": bool(config.model_config.is_encoder_decoder),
        "pipeline parallelism": config.parallel_config.pipeline_parallel_size > 1,
    }
    return [name for name, true in found.items() if true]


class Lines:
    """Makes lines of events; called in the thread that writes. Requests are called by the order in which they came.

    A step in which the same requests decode one token each as in the step before it is a short line, with `"again"`.
    """

    def __init__(self, settings: Mapping[str, Any], instance: str) -> None:
        self._settings, self._slots = settings, settings["vllm"]["max_num_seqs"]
        self._same = {"v": VERSION, "model": MODEL, "instance": instance}
        self._key = secrets.token_bytes(16)  # so that nobody can look up a text by the hashes of its blocks
        self._names: dict[str, str] = {}  # of the live requests, by vLLM's ids
        self._facts: dict[str, Line] = {}  # of the live requests, by those too
        self._prompts: dict[str, int] = {}
        self._count = self._steps = self._came = 0
        self._over = 0.0
        self._last: list[str] | None = None  # the batch of the line before, as the file has it
        self._ended: dict[str, str] = {}

    def begin(self) -> list[Line]:
        """A file begins with the settings, and with the requests that are on their way."""
        self._last = None
        now = {"t": round(time.monotonic(), 6), **self._same}
        return [{"kind": "scheduler", **now, **self._settings}, *self._facts.values()]

    def of(self, event: Any) -> list[Line]:
        match event:
            case Came():
                return [self._arrival(event)]
            case Landed():
                return self._step(event)
            case Left():
                return self._request(event)
        return [] if self._names or not self._ended else [self._change()]

    def _arrival(self, event: Came) -> Line:
        self._came += 1
        name = str(self._came)
        line = {
            "kind": "arrival",
            "t": round(event.at, 6),
            **self._same,
            "name": name,
            "id": event.id,
            "came": self._came,
            "arrived": round(event.at, 6),
            "waited": round(event.waited, 6),
            "after": self._steps,
            "prompt": event.prompt,
            "limit": event.limit,
            "priority": event.priority,
        }
        self._names[event.id], self._facts[event.id], self._prompts[event.id] = name, line, event.prompt
        return line

    def _request(self, event: Left) -> list[Line]:
        if (facts := self._facts.pop(event.id, None)) is None:
            return []
        name = self._names.pop(event.id)
        self._prompts.pop(event.id)
        self._ended[name] = event.why
        ended = {
            "kind": "request",
            "t": round(event.at, 6),
            "made": event.made,
            "why": event.why,
            "left": self._steps,
            "word": False,
            "tenant": "",
            "resumable": True,
            "prefixes": "",
            "hashes": self._hashes(event.hashes),
        }
        return [{**facts, **ended}]

    def _hashes(self, blocks: Any) -> str:
        """A keyed hash of the sequence up to the end of each full block, in base64."""
        digests = (hashlib.blake2b(block, key=self._key, digest_size=HASH_BYTES).digest() for block in blocks)
        return base64.b64encode(b"".join(digests)).decode()

    def _change(self) -> Line:
        """Requests have ended without a step, and none is left."""
        self._count += 1
        now = round(time.monotonic(), 6)
        line = {"n": self._count, "t": now, "dur": 0.0, **self._same, "kind": "change", "batch": 0, "ids": []}
        line["ended"], self._ended, self._last = self._ended, {}, None
        return line

    def _step(self, event: Landed) -> list[Line]:
        """The step without requests that had ended when it was computed: vLLM decided it before that was known."""
        found = event.decision
        here = {id: self._names[id] for id in found.tokens if id in self._names}
        letters = zip(found.tokens, found.phase(self._prompts), strict=True)
        phase = "".join(letter for id, letter in letters if id in here)
        names = {id: self._names[id] for id in (*found.preempted, *found.waiting) if id in self._names}
        lines = [line for left in event.left for line in self._request(left)]
        began, self._over = max(found.began, self._over), event.over
        if here:
            self._count += 1
            lines.append(self._whole(event, began, here, phase, names))
            self._last = [name for name in here.values() if name not in self._ended]
            self._ended = {}
        self._steps += bool(here or found.queue)
        return lines

    def _whole(
        self, event: Landed, began: float, here: Mapping[str, str], phase: str, names: Mapping[str, str]
    ) -> Line:
        """The line of a step of the requests `here`; `names` are those of others."""
        found, ids = event.decision, [*here.values()]
        tokens, made = [found.tokens[id] for id in here], [event.made.get(id, 0) for id in here]
        line: Line = {
            "n": self._count,
            "t": round(event.over, 6),
            "dur": round(event.over - began, 6),
            **self._same,
            "kind": "step",
            "batch": len(ids),
        }
        if tokens == [1] * len(ids) == made and "p" not in phase and ids == self._last and not found.admitted:
            line["again"] = True
        else:
            line |= {"ids": ids, "phase": phase, "tokens": tokens, "made": made}
        if found.admitted:
            line["joined"] = [here[id] for id in here if id in found.admitted]
            line["cached"] = [found.admitted.get(id, 0) for id in here]
        for name, value in {
            "guessed": [found.drafted.get(id, 0) for id in here] if found.drafted else [],
            "evicted": [names[id] for id in found.preempted if id in names],
            "waiting": [names[id] for id in found.waiting if id in names],
            "why": found.because.why,
            "because": dict(found.because.numbers),
            "ahead_us": round((began - found.began) * 1e6),
            "in_vain": len(found.tokens) - len(here),
            "mask_us": round(found.mask_s * 1e6) if found.mask_s is not None else 0,
            "ended": self._ended,
        }.items():
            if value:
                line[name] = value
        return line | {"queue": found.queue, "slots": self._slots, "kv_blocks_used": found.blocks_used}


def pid_of(name: str) -> int:
    """The process that wrote a recording of this name."""
    return int(name.split("-")[-2])


def alive(name: str) -> bool:
    """Whether the process that wrote a recording still runs on this machine."""
    try:
        os.kill(pid_of(name), 0)
    except (OSError, ValueError):
        return False
    return True
