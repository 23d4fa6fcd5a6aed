"""Computes on every core, as a model without a GPU does."""

import hashlib
import os
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import triton_python_backend_utils as pb_utils

from labserve.guard import Guard
from labserve.observe.watched_log import WatchedLog
from labserve.triton import instance, parameter, request_names, text_of


class TritonPythonModel:
    def initialize(self, args):
        self.guard = Guard(args)
        self.rounds = int(parameter(args, "rounds"))
        self.cores = len(os.sched_getaffinity(0))
        self.pool = ThreadPoolExecutor(self.cores)
        self.log = WatchedLog(parameter(args, "run_dir"), args["model_name"], instance(args))

    def execute(self, requests):
        return self.guard.each(requests, self.work)

    def work(self, request):
        started = time.monotonic()
        # PBKDF2 is made to take time, and leaves Python's lock while it does.
        key = partial(hashlib.pbkdf2_hmac, "sha256", text_of(request, "text_input"), iterations=self.rounds)
        parts = self.pool.map(lambda core: key(salt=bytes([core])).hex(), range(self.cores))
        answer = np.array([["".join(parts).encode()]], dtype=object)
        self.log.write(started, request_names([request]))
        return [pb_utils.Tensor("text_output", answer)]

    def finalize(self):
        self.pool.shutdown()
        self.log.close()
