"""`vllm_model`: vLLM's engine behind the tensors of NVIDIA's vllm_backend.

That backend gives requests to vLLM's `AsyncLLM`, which steps by itself. Here a thread of ours calls each step
(labserve/driver.py), so the clock can hold it, and the step log says what vLLM's scheduler decided
(labserve/vllm/engine.py).
"""

import json
from pathlib import Path

from labserve.triton import model_parameters
from labserve.vllm.setup import set_up_arguments
from labserve.vllm.text import drive_text


class TritonPythonModel:
    def initialize(self, args):
        arguments = json.loads((Path(__file__).parent / "model.json").read_text())
        self.driver = drive_text(args, set_up_arguments(arguments, model_parameters(args)))
        self.driver.start()

    def execute(self, requests):
        return self.driver.put(requests)

    def finalize(self):
        self.driver.close()
