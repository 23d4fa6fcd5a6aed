"""The recording of vLLM's scheduler: which events of it are noted, and the lines that come of them.

The lines are those of the labs' step log (docs/develop/step-log.md), written in a thread. In vLLM's own thread a step
costs a copy of a few lists. Lengths, times, hashes of blocks and reasons are written; never a text or a token's id.
"""

import base64
import dataclasses
import hashlib
import secrets
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from labsched.log.steplog import VERSION
from labsched.step import MOST_NAMED
from labsched.vllm import files
from labsched.vllm.decision import Decision, StepsInFlight, decision, shared_blocks
from labsched.vllm.files import BLOCK_HASH_BYTES, Files, Line

FOLDER = "LABS_RECORD"
MODEL = "vllm"
LONGEST_WAIT_S = 3600.0  # between vLLM's own time of arrival and the scheduler; more is another kind of time
WHYS = {"stop": "stop", "length": "length", "abort": "cancelled", "error": "failed", "repetition": "stop"}
# Fields of vLLM's SchedulerConfig that a replay may be asked about although they have their defaults.
ARGUMENTS = ("long_prefill_token_threshold", "watermark", "scheduler_reserve_full_isl")
# Fields that the labs' words or vLLM's own names beside them say, or which decide nothing about a step.
TOLD = {
    "max_num_seqs", "max_num_batched_tokens", "enable_chunked_prefill", "policy", "async_scheduling", "scheduler_cls",
    "block_size", "gpu_memory_utilization", "num_gpu_blocks_override", "enable_prefix_caching", "kv_cache_memory_bytes",
    "cache_dtype", "kv_cache_dtype_skip_layers", "prefix_caching_hash_algo", "mamba_ssm_cache_dtype", "stream_interval",
    "disable_hybrid_kv_cache_manager",
}  # fmt: skip
PASSED_ON = {"prefix_match_unit", "prefix_cache_retention_interval"}  # fields of CacheConfig that decide about steps


class Came(NamedTuple):
    """A request has come to the scheduler."""

    request: Any  # vLLM's
    at: float  # monotonic seconds
    waited: float | None  # seconds since vLLM's front end received it; None: vLLM does not say


class Landed(NamedTuple):
    """The result of a step has come: vLLM's lists of `EngineCoreOutput`."""

    decision: Decision
    over: float  # monotonic seconds
    outputs: list[Any]


class Ended(NamedTuple):
    """Requests were ended from outside of a step."""

    ids: Sequence[str] | None  # None: all
    at: float  # monotonic seconds


def recording_class(kind: Any, folder: str) -> Any:
    """A subclass of a scheduler class of vLLM which records into `folder`; with "" it records nothing.

    No error of a recording reaches vLLM: it ends the recording, with one line in vLLM's log.
    """

    class RecordedScheduler(kind):  # type: ignore[misc]
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

        def finish_requests(self, request_ids: Any, *args: Any, **named: Any) -> Any:
            if request_ids is not None and not isinstance(request_ids, str):
                request_ids = [*request_ids]  # it may be an iterator
            found = super().finish_requests(request_ids, *args, **named)
            if self._noted:
                self._noted.ended([request_ids] if isinstance(request_ids, str) else request_ids)
            return found

        def shutdown(self) -> None:
            super().shutdown()
            if self._noted:
                self._noted.close()

    return RecordedScheduler


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
    """Takes notes in vLLM's thread: it keeps vLLM's objects until the lines of them are made, in the other thread."""

    def __init__(self, written: Files) -> None:
        self.files = written
        self._in_flight = StepsInFlight()
        self._head: tuple[str, int] = "", 0  # the request for which shared blocks were counted, and how many
        weakref.finalize(self, written.close)

    @classmethod
    def of(cls, scheduler: Any, folder: str) -> "Notes | None":
        """For a scheduler that was made. Raises what vLLM's configuration and the environment raise."""
        if not folder:
            files.log.warning("nothing is recorded: set %s to a folder", FOLDER)
            return None
        rank = int(getattr(scheduler.parallel_config, "data_parallel_rank", 0) or 0)
        lines = Lines(scheduler_line(scheduler), str(rank))
        written = Files(Path(folder), files.recording_name(rank), lines.of, lines.begin, files.most_bytes())
        files.log.info("recording each step of the scheduler into %s", folder)
        return cls(written)

    @_guarded
    def came(self, request: Any) -> None:
        arrived = getattr(request, "arrival_time", None)
        waited = None if arrived is None else time.time() - float(arrived)
        if waited is not None and not 0.0 <= waited < LONGEST_WAIT_S:
            waited = None
        self.files.add(Came(request, time.monotonic(), waited))

    @_guarded
    def decided(self, scheduler: Any, output: Any, began: float) -> None:
        self._in_flight.add(output, decision(scheduler, output, began, MOST_NAMED, self._shared))

    @_guarded
    def landed(self, output: Any, results: Any) -> None:
        decided = self._in_flight.take(output)
        self.files.add(Landed(decided, time.monotonic(), [result.outputs for result in results.values()]))

    @_guarded
    def ended(self, ids: Sequence[str] | None) -> None:
        self.files.add(Ended(ids, time.monotonic()))

    def _shared(self, scheduler: Any, request: Any) -> int:
        """Counted once while a request is the first: it costs the more the longer its prompt is."""
        if self._head[0] != request.request_id:
            self._head = request.request_id, shared_blocks(scheduler, request)
        return self._head[1]

    def forget(self) -> None:
        """The recording has ended: vLLM's objects are not kept."""
        self._in_flight.steps.clear()

    def close(self) -> None:
        self.files.close()


def scheduler_line(scheduler: Any) -> dict[str, Any]:
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
    own |= _memory(scheduler)
    own |= {name: value for name in ARGUMENTS if (value := getattr(config, name, None)) is not None}
    chosen, cached = chosen_fields(config), chosen_fields(cache)
    passed_on = {name: own[name] for name in ARGUMENTS if name in own} | chosen
    passed_on |= {name: value for name, value in cached.items() if name in PASSED_ON}
    own |= passed_on | {"kv_cache_dtype": str(cache.cache_dtype)}
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
        **passed_on,
    }
    return {
        "words": {name: str(value).lower() for name, value in words.items()},
        "context": own["max_model_len"],
        "vocabulary": int(model.get_vocab_size()),
        "blocks": blocks,
        "block_size": size,
        "step_tokens": own["max_num_batched_tokens"],
        "own": None,
        "vllm": {"version": vllm.__version__, **own},
        "hash_block_size": int(getattr(scheduler, "hash_block_size", size)),
        "beyond": [
            *_beyond(scheduler),
            *(f"{name}={value}" for name, value in cached.items() if name not in PASSED_ON),
        ],
        "wall": time.time() - time.monotonic(),  # seconds between the log's time and the clock's
    }


def chosen_fields(config: Any) -> dict[str, Any]:
    """The fields of a configuration of vLLM's that are not at their defaults, without those that it derives or TOLD."""
    found = {}
    for field in dataclasses.fields(config):
        default = getattr(field.default, "default", field.default)  # of pydantic's own record of it
        derived = not field.init or getattr(field.default, "init", None) is False
        value = getattr(config, field.name, default)
        if not derived and field.name not in TOLD and value != default:
            found[field.name] = value if isinstance(value, bool | int | float) else str(value)
    return found


def _memory(scheduler: Any) -> dict[str, int]:
    """The bytes of the device and of one KV block on it; {} if vLLM does not say, or the device is a CPU."""
    try:
        from vllm.platforms import current_platform

        tensors, blocks = scheduler.kv_cache_config.kv_cache_tensors, scheduler.kv_cache_config.num_blocks
        block = sum(int(tensor.size) for tensor in tensors) // int(blocks)
        if current_platform.is_cpu() or not block:
            return {}
        return {"device_memory": int(current_platform.get_device_total_memory()), "block_bytes": block}
    except Exception:  # of a driver, or a name that vLLM has changed
        return {}


def _beyond(scheduler: Any) -> list[str]:
    """Features of this server that a replay of its scheduler lacks, so that it would form other batches."""
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
    """Makes lines from events, in the writer's thread. Requests are named in order of arrival.

    Most steps are short lines. `"again":["batch"]`: the requests of the previous line decode one token each, except
    the requests that ended in it. `"again":["waiting"]`: the same requests wait.
    """

    def __init__(self, settings: Mapping[str, Any], instance: str) -> None:
        self._settings = settings
        self._slots = settings["vllm"]["max_num_seqs"]
        self._same = {"v": VERSION, "model": MODEL, "instance": instance}
        self._key = secrets.token_bytes(16)  # so that a text cannot be looked up by the hashes of its blocks
        # The live requests, by vLLM's ids:
        self._requests: dict[str, Any] = {}
        self._names: dict[str, str] = {}
        self._facts: dict[str, Line] = {}
        self._prompts: dict[str, int] = {}
        self._count = self._steps = self._came = 0
        self._over = 0.0
        # The previous line, by vLLM's ids: the batch without ended requests, if each got a token; the waiting requests.
        self._last: list[str] | None = None
        self._waited: list[str] | None = None
        self._ended: dict[str, str] = {}

    def begin(self) -> list[Line]:
        """A file begins with the settings, and with the requests that are on their way."""
        self._last = self._waited = None
        now = {"t": round(time.monotonic(), 6), **self._same}
        return [{"kind": "scheduler", **now, **self._settings}, *self._facts.values()]

    def of(self, event: Any) -> list[Line]:
        match event:
            case Came():
                return [self._arrival(event)]
            case Landed():
                return self._landed(event)
            case Ended():
                asked = [*self._requests] if event.ids is None else event.ids
                gone = [id for id in asked if id in self._requests and self._requests[id].is_finished()]
                return [self._request(id, str(self._requests[id].get_finished_reason()), event.at) for id in gone]
        return [] if self._names or not self._ended else [self._change()]

    def _arrival(self, event: Came) -> Line:
        self._came += 1
        request, name = event.request, str(self._came)
        line = {
            "kind": "arrival",
            "t": round(event.at, 6),
            **self._same,
            "name": name,
            "id": request.request_id,
            "came": self._came,
            "arrived": round(event.at, 6),
            "after": self._steps,
            "prompt": int(request.num_prompt_tokens),
            "limit": int(request.max_tokens),
            "priority": int(request.priority),
        }
        if event.waited is not None:
            line["waited"] = round(event.waited, 6)
        id = request.request_id
        self._requests[id], self._names[id], self._facts[id] = request, name, line
        self._prompts[id] = line["prompt"]
        return line

    def _request(self, id: str, reason: str, at: float) -> Line:
        """The record of a live request that has ended."""
        request, name, facts = self._requests.pop(id), self._names.pop(id), self._facts.pop(id)
        del self._prompts[id]
        why = self._ended[name] = WHYS.get(reason, reason)
        ended = {
            "kind": "request",
            "t": round(at, 6),
            "made": int(request.num_output_tokens),
            "why": why,
            "left": self._steps,
            "word": False,
            "tenant": None,
            "resumable": True,
            "prefixes": "",
            "hashes": self._hashes(getattr(request, "block_hashes", ())),
        }
        return {**facts, **ended}

    def _hashes(self, blocks: Any) -> str:
        """A keyed hash of the sequence up to the end of each full block, in base64."""
        digests = (hashlib.blake2b(block, key=self._key, digest_size=BLOCK_HASH_BYTES).digest() for block in blocks)
        return base64.b64encode(b"".join(digests)).decode()

    def _change(self) -> Line:
        """Requests have ended without a step, and none is left."""
        self._count += 1
        line = {
            "n": self._count,
            "t": round(time.monotonic(), 6),
            "dur": 0.0,
            **self._same,
            "kind": "change",
            "batch": 0,
            "ids": [],
            "ended": self._ended,
        }
        self._ended = {}
        self._last = self._waited = None
        return line

    def _landed(self, event: Landed) -> list[Line]:
        """The step, and the requests that it ended. Requests that had ended when it was computed are left out: vLLM
        decided it before that was known.
        """
        decided = event.decision
        outputs = [output for engine_outputs in event.outputs for output in engine_outputs]
        made = {output.request_id: len(output.new_token_ids) for output in outputs}
        began = max(decided.began, self._over)
        self._over = event.over
        batch = [*decided.tokens]
        if not self._names.keys() >= decided.tokens.keys():
            batch = [id for id in batch if id in self._names]
        line = self._step(decided, event.over, began, batch, made) if batch else None
        reasons = {output.request_id: output.finish_reason for output in outputs if output.finish_reason is not None}
        gone = {id: str(reason) for id, reason in reasons.items() if id in self._requests}
        lines = [self._request(id, reason, event.over) for id, reason in gone.items()]
        if line:
            if self._ended:
                line["ended"] = self._ended
                self._ended = {}
            lines.append(line)
            all_made = made.keys() == decided.tokens.keys() and 0 not in made.values()
            self._last = [id for id in batch if id not in gone] if all_made else None
        self._steps += bool(batch or decided.queue)
        return lines

    def _step(self, decided: Decision, over: float, began: float, batch: list[str], made: Mapping[str, int]) -> Line:
        """The line of a step; `batch`: its requests that are still live."""
        self._count += 1
        names = self._names
        line: Line = {
            "n": self._count,
            "t": round(over, 6),
            "dur": round(over - began, 6),
            **self._same,
            "kind": "step",
            "batch": len(batch),
        }
        again = []
        counts = [*decided.tokens.values()], [*made.values()]
        if batch == self._last and all(len(each) == each.count(1) == len(batch) for each in counts):
            again.append("batch")
        else:
            letters = dict(zip(decided.tokens, decided.phase(self._prompts), strict=True))
            line |= {
                "ids": [names[id] for id in batch],
                "phase": "".join(letters[id] for id in batch),
                "tokens": [decided.tokens[id] for id in batch],
                "made": [made.get(id, 0) for id in batch],
            }
        if decided.admitted:
            line["joined"] = [names[id] for id in batch if id in decided.admitted]
            line["cached"] = [decided.admitted.get(id, 0) for id in batch]
        waiting = [id for id in decided.waiting if id in names]
        if waiting and waiting == self._waited:
            again.append("waiting")
        optional = {
            "again": again,
            "guessed": [decided.drafted.get(id, 0) for id in batch] if decided.drafted else [],
            "evicted": [names[id] for id in decided.preempted if id in names],
            "waiting": [] if "waiting" in again else [names[id] for id in waiting],
            "why": [why for id, why in zip(decided.waiting, decided.whys, strict=True) if id in names]
            if decided.whys
            else decided.because.why,
            "because": dict(decided.because.numbers),
            "ahead_us": round((began - decided.began) * 1e6),
            "in_vain": len(decided.tokens) - len(batch),
            "mask_us": round(decided.mask_s * 1e6) if decided.mask_s is not None else 0,
        }
        line |= {name: value for name, value in optional.items() if value}
        self._waited = waiting
        return line | {"queue": decided.queue, "slots": self._slots, "kv_blocks_used": decided.blocks_used}
