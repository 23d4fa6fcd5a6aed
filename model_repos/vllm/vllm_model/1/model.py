"""`vllm_model`: vLLM's engine behind the tensors of NVIDIA's vllm_backend.

That backend gives requests to vLLM's `AsyncLLM`, which steps by itself. Here a thread of ours calls each step, so the
clock can hold it, and the step log says what vLLM's scheduler decided (labserve/vllm/engine.py).
"""

import json
import threading
from pathlib import Path

from labserve.guard import Guard
from labserve.inflight.clients import Clients
from labserve.inflight.recorder import Recorder
from labserve.params import Refusal
from labserve.triton import model_parameters
from labserve.vllm.setup import set_up_arguments
from labserve.vllm.text import TextAnswers, TextInbox

END_S = 10.0  # how long an unloaded model waits for its last step


class TritonPythonModel:
    def initialize(self, args):
        arguments = json.loads((Path(__file__).parent / "model.json").read_text())
        setup = set_up_arguments(arguments, model_parameters(args))
        self.vllm, self.guard = setup.scheduler, Guard(args)
        self.recorder = Recorder(args, setup)
        self.answers = TextAnswers(self.guard, True, self.recorder.ended)
        self.clients = Clients(self.vllm, self.answers)
        self.inbox = TextInbox(setup, self.guard, self.answers, self.recorder.arrived)
        self.thread = threading.Thread(target=self.serve, name="vllm", daemon=True)
        self.thread.start()

    def execute(self, requests):
        return self.inbox.put(requests)

    def serve(self):
        """One step after the other; asleep while there is nothing to do. After a failed step the server goes on."""
        self.recorder.watch(self.step)
        with self.inbox.served():
            while self.inbox.receive(wait=self.vllm.idle):
                try:
                    self.step()
                except Exception as error:
                    self.give_up(Refusal(f"the step failed: {self.guard.words(error)}"))

    def step(self):
        self.clients.drop_gone()
        if not self.recorder.ready(self.vllm.plan()) or self.vllm.idle:
            return  # the clock stands still, or every client has gone
        step = self.vllm.step()
        for request, tokens in step.produced:
            try:
                self.answers.stream(request, tokens)
            except Exception as error:  # it cannot be sent: this request ends, and the others go on
                self.vllm.cancel(request, error)
                step.ended.append(request)
        for request in step.ended:
            self.answers.finish(request)
        self.recorder.record(step)

    def give_up(self, error):
        """End every request with an error."""
        for request in self.vllm.abandon(error):
            self.answers.finish(request)
        self.answers.refuse_all(error)
        self.recorder.gave_up()

    def finalize(self):
        self.inbox.close()
        self.thread.join(END_S)
        if not self.thread.is_alive():  # else it is in a step that does not end
            self.give_up(Refusal("the model is being unloaded"))
        self.recorder.close()
