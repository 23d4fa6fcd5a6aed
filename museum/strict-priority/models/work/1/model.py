"""Sleeps for as many seconds as X says. Y is the request's place in the order in which they were served, from 1."""

import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.served = 0

    def execute(self, requests):
        responses = []
        for request in requests:
            self.served += 1
            time.sleep(float(pb_utils.get_input_tensor_by_name(request, "X").as_numpy().max()))
            place = np.full((1, 1), self.served, np.float32)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", place)]))
        return responses
