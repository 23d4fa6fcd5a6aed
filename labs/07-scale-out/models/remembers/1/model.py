"""Counts the requests of each sequence. Triton refuses a sequence that it has not seen begin (flag START)."""

import time

import numpy as np
import triton_python_backend_utils as pb_utils

from labserve.guard import Guard
from labserve.observe.watched_log import WatchedLog
from labserve.triton import instance, parameter, request_names

START, END = pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START, pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END
MOST = 10_000  # sequences; the oldest is dropped when there are more, because some clients never send END


class TritonPythonModel:
    def initialize(self, args):
        self.guard = Guard(args)
        self.counts = {}  # correlation id -> requests so far; the oldest sequence is first
        self.log = WatchedLog(parameter(args, "run_dir"), args["model_name"], instance(args))

    def execute(self, requests):
        started = time.monotonic()
        responses = self.guard.each(requests, self.count)
        starts = [int(request.flags() & START > 0) for request in requests]
        self.log.write(started, request_names(requests), start=starts)
        return responses

    def count(self, request):
        id, flags = request.correlation_id(), request.flags()
        count = 1 if flags & START else self.counts.get(id, 0) + 1
        if flags & START:
            self.counts.pop(id, None)
        self.counts[id] = count
        if flags & END:
            del self.counts[id]
        while len(self.counts) > MOST:
            del self.counts[next(iter(self.counts))]
        return [pb_utils.Tensor("text_output", np.array([[str(count).encode()]], dtype=object))]

    def finalize(self):
        self.log.close()
