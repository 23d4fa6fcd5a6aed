"""Keeps a core busy for the time that a request asks for."""

import time

import numpy as np
import triton_python_backend_utils as pb_utils

from labserve.guard import Guard
from labserve.observe.watched_log import WatchedLog
from labserve.params import read_number
from labserve.triton import input_reader, instance, parameter, request_names

LONGEST_MS = 10_000


class TritonPythonModel:
    def initialize(self, args):
        self.guard = Guard(args)
        self.log = WatchedLog(parameter(args, "run_dir"), args["model_name"], instance(args))

    def execute(self, requests):
        return self.guard.each(requests, self.work)

    def work(self, request):
        started, rounds = time.monotonic(), 0
        seconds = read_number(input_reader(request), "milliseconds", 0, 0, LONGEST_MS) / 1e3
        while time.monotonic() - started < seconds:
            np.linalg.norm(np.ones(10_000))
            rounds += 1
        self.log.write(started, request_names([request]))
        return [pb_utils.Tensor("rounds", np.array([rounds], dtype=np.int32))]

    def finalize(self):
        self.log.close()
