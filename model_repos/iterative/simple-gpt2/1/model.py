"""GPT-2 the simple way: a batch runs to its end, then the next one begins.

Triton's dynamic batcher hands `execute` the requests that were waiting. `execute` returns when the last of them has its
last token. A request that arrives meanwhile waits.

labserve/gpt2/running.py begins sequences. labserve/driver.py computes their steps, sends the tokens and writes the log.
"""

from labserve.gpt2.running import Running


class TritonPythonModel:
    def initialize(self, args):
        self.running = Running(args)

    def execute(self, requests):
        batch = self.running.sequences_of(requests)
        while batch:  # no request joins before all have left
            self.running.step(batch)
            batch = [sequence for sequence in batch if not sequence.finished]

    def finalize(self):
        self.running.close()
