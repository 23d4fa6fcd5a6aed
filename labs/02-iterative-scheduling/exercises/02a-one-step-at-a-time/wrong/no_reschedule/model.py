"""GPT-2 under iterative scheduling: Triton calls `execute` again for every token."""

from labserve.gpt2.running import Running


class TritonPythonModel:
    def initialize(self, args):
        self.running = Running(args)

    def execute(self, requests):
        batch = self.running.sequences_of(requests)
        self.running.step(batch)
