"""Waits, as the CPU does while a GPU computes; a batch takes no longer than one request."""

import time

import triton_python_backend_utils as pb_utils

from labserve.guard import Guard
from labserve.observe.watched_log import WatchedLog
from labserve.triton import instance, parameter, request_names


class TritonPythonModel:
    def initialize(self, args):
        self.guard = Guard(args)
        self.seconds = float(parameter(args, "step_ms")) / 1e3
        self.log = WatchedLog(parameter(args, "run_dir"), args["model_name"], instance(args))

    def execute(self, requests):
        started = time.monotonic()
        time.sleep(self.seconds)
        self.log.write(started, request_names(requests))
        return self.guard.each(requests, echo)

    def finalize(self):
        self.log.close()


def echo(request):
    text = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy()
    return [pb_utils.Tensor("text_output", text)]
