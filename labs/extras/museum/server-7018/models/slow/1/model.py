"""Takes two seconds to initialize."""

import time
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        compiled = (Path(__file__).parent / "__pycache__").exists()
        print("initialize begins, compiled:", compiled, flush=True)
        time.sleep(2)

    def execute(self, requests):
        answer = pb_utils.Tensor("Y", np.ones((1, 1), np.float32))
        return [pb_utils.InferenceResponse([answer]) for _ in requests]
