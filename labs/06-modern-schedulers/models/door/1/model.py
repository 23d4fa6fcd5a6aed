"""A door before the ensemble: each instance lets one request through and waits for its whole answer.

The engine takes every request at once and queues them itself. So Triton's queue in front of it is always empty, and
what Triton can do with a queue would have nothing to do. Behind a door they wait: see config.pbtxt.
"""

import time

import numpy as np
import triton_python_backend_utils as pb_utils

from labserve.guard import Guard
from labserve.observe.watched_log import WatchedLog
from labserve.params import Refusal
from labserve.triton import instance, parameter, request_names


class TritonPythonModel:
    def initialize(self, args):
        self.guard = Guard(args)
        self.log = WatchedLog(parameter(args, "run_dir"), args["model_name"], instance(args))

    def execute(self, requests):
        return self.guard.each(requests, self.answer)

    def answer(self, request):
        started = time.monotonic()
        asked = [pb_utils.get_input_tensor_by_name(request, name) for name in ("text_input", "max_tokens")]
        no_words = [pb_utils.Tensor(name, text(b"")) for name in ("bad_words", "stop_words")]
        inner = pb_utils.InferenceRequest(
            model_name="ensemble",
            inputs=[*asked, *no_words],
            requested_output_names=["text_output"],
            request_id=request.request_id(),
        )
        response = inner.exec()
        if response.has_error():
            raise Refusal(response.error().message())
        self.log.write(started, request_names([request]))
        answer = pb_utils.get_output_tensor_by_name(response, "text_output").as_numpy().reshape(-1)[0]
        return [pb_utils.Tensor("text_output", text(answer))]

    def finalize(self):
        self.log.close()


def text(value):
    return np.array([[value]], dtype=object)
