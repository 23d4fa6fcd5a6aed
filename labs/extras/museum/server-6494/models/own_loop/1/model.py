"""Hands each request to a thread, which answers after X seconds; `labs_unanswered` counts those not answered."""

import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        family = pb_utils.MetricFamily("labs_unanswered", "Requests not answered yet", pb_utils.MetricFamily.GAUGE)
        self._family, self._unanswered = family, family.Metric(labels={"model": args["model_name"]})

    def execute(self, requests):
        for request in requests:
            self._unanswered.increment(1)
            seconds = float(pb_utils.get_input_tensor_by_name(request, "X").as_numpy()[0, 0])
            threading.Thread(target=self._answer, args=(request.get_response_sender(), seconds)).start()

    def _answer(self, sender, seconds):
        time.sleep(seconds)
        tensor = pb_utils.Tensor("Y", np.ones((1, 1), np.float32))
        sender.send(pb_utils.InferenceResponse([tensor]), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        self._unanswered.increment(-1)
