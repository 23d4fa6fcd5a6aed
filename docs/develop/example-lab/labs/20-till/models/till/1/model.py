"""Takes the same time for many requests as for one. Each answer says how many there were."""

import time

import numpy as np
import triton_python_backend_utils as pb_utils

from labserve.triton import parameter


class TritonPythonModel:
    def initialize(self, args):
        self.seconds = float(parameter(args, "seconds"))

    def execute(self, requests):
        time.sleep(self.seconds)
        together = np.array([[str(len(requests)).encode()]], dtype=object)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("together", together)]) for _ in requests]
