"""GPT-2 that keeps a batch to its end. Make it give the requests back to Triton after each token."""

import triton_python_backend_utils as pb_utils

from labserve.gpt2.running import Running


class TritonPythonModel:
    def initialize(self, args):
        self.running = Running(args)

    def execute(self, requests):
        batch = self.running.sequences_of(requests)
        while batch:  # until the last of them is done
            self.running.step(batch)
            batch = [sequence for sequence in batch if not sequence.finished]
