"""GPT-2 under iterative scheduling: every execution adds one token to each sequence in the batch.

A request that needs more tokens is *rescheduled*: given back to Triton, which puts it into a coming batch. A newcomer
joins at the next token, and a sequence that ends leaves its slot at once.

labserve/gpt2/running.py begins sequences. labserve/driver.py computes their steps, sends the tokens and writes the log.
"""

import triton_python_backend_utils as pb_utils

from labserve.gpt2.running import IterativeRunning


class TritonPythonModel:
    def initialize(self, args):
        self.running = IterativeRunning(args)

    def execute(self, requests):
        with self.running.execution(requests) as sequences:
            batch = self.choose(sequences)
            if not self.running.awaits_others(batch):
                self.running.step(batch)
            for sequence in sequences:
                if not sequence.finished:  # the heart of it: not done yet, schedule me again
                    sequence.request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)

    def choose(self, sequences):
        """The sequences that hold a slot, and newcomers for the free slots, in the order in which Triton has them.

        A newcomer that finds no free slot goes back to Triton without a token.
        """
        newcomers = [sequence for sequence in sequences if not sequence.running]
        admitted = newcomers[: self.running.free_slots(sequences)]
        return [sequence for sequence in sequences if sequence.running or sequence in admitted]

    def finalize(self):
        self.running.close()
