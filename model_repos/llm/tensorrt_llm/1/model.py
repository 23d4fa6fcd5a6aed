"""In-flight batching: requests join and leave the batch at every step of the engine.

`execute` hands requests over and returns at once. A thread of its own receives them, plans, computes a step, and
answers: labserve/driver.py. The plan is the scheduler's (labsched/scheduler.py), where static and in-flight batching
differ; with engine=vllm, vLLM's own scheduler decides (labserve/vllm/engine.py). A subclass of either in a
`scheduler.py` next to this file takes its place.
"""

from pathlib import Path

from labserve.inflight.engine_driver import drive_tokens


class TritonPythonModel:
    def initialize(self, args):
        self.driver = drive_tokens(args, Path(__file__).parent)
        self.driver.start()

    def execute(self, requests):
        return self.driver.put(requests)

    def finalize(self):
        self.driver.close()
