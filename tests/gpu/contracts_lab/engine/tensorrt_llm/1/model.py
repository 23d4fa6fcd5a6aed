"""A stand-in for NVIDIA's tensorrtllm backend: it computes nothing, and refuses, answers and reports as upstream does.

Its "model" continues every prompt with the letter b, and with EOS as the third token. Line numbers are those of
tensorrtllm_backend's inflight_batcher_llm/src at the tag that is named.
"""

import json
import threading
import time
from dataclasses import dataclass, field

import numpy as np
import triton_python_backend_utils as pb_utils

LETTER, EOS, EOS_AT = ord("b"), 2, 2
VOCABULARY, SLOTS, BLOCK, BLOCKS = 512, 4, 64, 100
FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
# custom_metrics_reporter.cc: v0.17.0:37-62.
REQUESTS = ("active", "max", "scheduled", "context")
KV_BLOCKS = ("max", "free", "used", "tokens_per")
IN_FLIGHT = ("total_context_tokens", "generation_requests", "micro_batch_id", "paused_requests")


@dataclass
class Job:
    """A request that was taken over; ``made`` are the tokens of its answer so far."""

    request: object
    prompt: list
    wanted: int
    end_id: int
    scores: bool
    made: list = field(default_factory=list)

    def step(self):
        """One more token; whether it was the last."""
        self.made.append(EOS if len(self.made) == EOS_AT else LETTER)
        return self.made[-1] == self.end_id or len(self.made) == self.wanted


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        said = {key: value["string_value"] for key, value in config["parameters"].items()}
        self.paused = int(said["paused"])
        self.iteration_s = int(said["iteration_ms"]) / 1e3
        self.iteration, self.queue = 0, []
        self.changed, self.ending = threading.Condition(), False
        self.metrics = Metrics(args)
        self.loop = threading.Thread(target=self.run)
        self.loop.start()

    def finalize(self):
        with self.changed:
            self.ending = True
            self.changed.notify_all()
        self.loop.join()

    def execute(self, requests):
        """Take requests over at once, as upstream's enqueue does (model_instance_state.cc: v0.17.0:828)."""
        for request in requests:
            try:
                job = self.taken(request)
            except ValueError as error:
                refusal = pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))
                request.get_response_sender().send(refusal, flags=FINAL)
                continue
            with self.changed:
                self.queue.append(job)
                self.changed.notify_all()

    def taken(self, request):
        def read(name, default=None):
            tensor = pb_utils.get_input_tensor_by_name(request, name)
            return default if tensor is None else tensor.as_numpy().reshape(-1)

        if read("streaming", [False])[0]:  # v0.17.0, utils.cc:795-798
            raise ValueError("Streaming is only supported if model is deployed using decoupled mode.")
        ids, length, wanted = read("input_ids"), read("input_lengths")[0], read("request_output_len")[0]
        if length != ids.size or not ids.size or wanted < 1:
            raise ValueError("an input is empty or does not fit")
        end_id = int(np.asarray(read("end_id", [-1])).astype(np.int32)[0])
        if not -1 <= end_id < VOCABULARY:  # TensorRT-LLM, cpp/tensorrt_llm/batch_manager/llmRequest.cpp, validate
            raise ValueError(f"EndId ({end_id}) is not within acceptable range [-1, {VOCABULARY}).")
        scores = bool(read("return_log_probs", [False])[0])
        return Job(request, ids.tolist(), int(wanted), end_id, scores)

    def run(self):
        """Iterations of in-flight batching."""
        active = []
        while True:
            with self.changed:
                while not (self.queue or active or self.ending):
                    self.changed.wait()
                if self.ending:
                    return
                room = SLOTS - len(active)
                active, self.queue = active + self.queue[:room], self.queue[room:]
            time.sleep(self.iteration_s)  # this is what it computes
            scheduled = len(active)
            active = [job for job in active if not self.advance(job)]
            self.iteration += 1
            self.metrics.report(self.iteration, len(active), scheduled, self.paused)

    def advance(self, job):
        """One more token of a request; whether its answer was sent."""
        if not job.step():
            return False
        try:
            response = pb_utils.InferenceResponse(self.tensors(job))
        except ValueError as error:
            response = pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))
        job.request.get_response_sender().send(response, flags=FINAL)
        return True

    def tensors(self, job):
        """The answer has the prompt in front (exclude_input_in_output is off)."""
        ids = job.prompt + job.made
        wanted = set(job.request.requested_output_names())
        found = {"output_ids": np.array([[ids]], dtype=np.int32)}
        found["sequence_length"] = np.array([[len(ids)]], dtype=np.int32)
        if job.scores:
            found["output_log_probs"] = np.full((1, 1, len(job.made)), -0.5, dtype=np.float32)
            found["cum_log_probs"] = np.array([[-0.5 * len(job.made)]], dtype=np.float32)
        # model_instance_state.cc: v0.17.0:981,994.
        for name in ("output_ids", "sequence_length"):
            if name not in wanted:
                raise ValueError(f"{name} tensor must be present in list of output tensors")
        return [pb_utils.Tensor(name, value) for name, value in found.items() if name in wanted]


class Metrics:
    """Gauges of the last iteration (custom_metrics_reporter.cc; WaitForStats, model_instance_state.cc v0.17.0:1272)."""

    def __init__(self, args):
        self.families = {}
        self.gauges = {}
        for family, category, labels in (
            ("request", "request_type", REQUESTS),
            ("kv_cache_block", "kv_cache_block_type", KV_BLOCKS),
            ("inflight_batcher", "inflight_batcher_specific_metric", IN_FLIGHT),
            ("general", "general_type", ("timestamp", "iteration_counter")),
        ):
            name = f"nv_trt_llm_{family}_metrics"
            made = pb_utils.MetricFamily(name=name, description=name, kind=pb_utils.MetricFamily.GAUGE)
            self.families[family] = made  # one that is collected takes its metrics with it
            model = {"model": args["model_name"], "version": args["model_version"]}
            for label in labels:
                self.gauges[family, label] = made.Metric(labels={**model, category: label})

    def report(self, iteration, active, scheduled, paused):
        used = min(BLOCKS, scheduled)
        for family, label, value in (
            ("request", "active", active),
            ("request", "max", SLOTS),
            ("request", "scheduled", scheduled),
            ("kv_cache_block", "max", BLOCKS),
            ("kv_cache_block", "tokens_per", BLOCK),
            ("kv_cache_block", "used", used),
            ("kv_cache_block", "free", BLOCKS - used),
            ("inflight_batcher", "generation_requests", scheduled),
            ("inflight_batcher", "paused_requests", paused),
            ("general", "iteration_counter", iteration),  # last: what is read beside it is of this iteration
        ):
            self.gauges[family, label].set(value)
