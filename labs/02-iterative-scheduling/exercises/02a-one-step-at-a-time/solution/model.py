"""GPT-2 under iterative scheduling: Triton calls `execute` again for every token."""

import triton_python_backend_utils as pb_utils

from labserve.gpt2.running import Running


class TritonPythonModel:
    def initialize(self, args):
        self.running = Running(args)

    def execute(self, requests):
        batch = self.running.sequences_of(requests)
        self.running.step(batch)
        for sequence in batch:
            if not sequence.finished:
                sequence.request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
