"""In-flight batching: requests join and leave the batch at every step of the engine.

`execute` puts requests into an inbox and returns at once. A thread of its own receives them, plans, computes a step,
and answers. The plan is the scheduler's (labsched/scheduler.py), where static and in-flight batching differ;
with engine=vllm, vLLM's own scheduler decides (labserve/vllm/engine.py). A subclass of either in a `scheduler.py` next
to this file takes its place. In vLLM this loop is `EngineCoreProc.run_busy_loop` (vllm/v1/engine/core.py).
"""

import threading
from pathlib import Path

from labsched.own import with_line
from labsched.policy import gather_s
from labserve.guard import Guard
from labserve.inflight.answers import Answers
from labserve.inflight.clients import Clients
from labserve.inflight.inbox import Inbox
from labserve.inflight.recorder import Recorder
from labserve.inflight.setup import open_scheduler
from labserve.params import Refusal
from labserve.triton import decoupled, device, model_parameters

END_S = 10.0  # how long an unloaded model waits for its last step
HERE = Path(__file__).parent


class TritonPythonModel:
    def initialize(self, args):
        setup = open_scheduler(model_parameters(args), device(args), HERE)
        self.scheduler, self.guard = setup.scheduler, Guard(args)
        self.recorder = Recorder(args, setup)
        self.answers = Answers(self.guard, decoupled(args), self.recorder.ended)
        self.clients = Clients(self.scheduler, self.answers)
        self.inbox = Inbox(setup, self.guard, self.answers, self.recorder.arrived, gather_s(model_parameters(args)))
        self.thread = threading.Thread(target=self.serve, name="scheduler", daemon=True)
        self.thread.start()

    def execute(self, requests):
        return self.inbox.put(requests)

    def serve(self):
        """One step after the other; asleep while there is nothing to do. After a failed step the server goes on."""
        self.recorder.watch(self.step)
        with self.inbox.served():
            while self.inbox.receive(wait=self.scheduler.idle):
                try:
                    self.step()
                except Exception as error:  # of the engine, of a scheduler next to this file, or of the recorder
                    self.give_up(Refusal(f"the step failed: {self.guard.words(with_line(error, HERE))}"))

    def step(self):
        self.clients.drop_gone()
        self.scheduler.ahead = self.recorder.free  # no clock holds: vLLM may decide a step before the last is over
        if self.scheduler.in_flight and not self.scheduler.ahead:
            self.tell(self.scheduler.step())  # one that was decided before the clock was stopped
            return
        plan = self.scheduler.plan()
        while self.clients.gone(plan.admitted):  # a request whose client has gone does not join
            plan = self.scheduler.plan()
        if not self.recorder.ready(plan) or self.scheduler.idle:
            return  # the clock stands still, or nothing is left; what arrives meanwhile is received
        self.tell(self.scheduler.step(plan))

    def tell(self, step):
        for request, tokens in step.produced:
            try:
                self.answers.stream(request, tokens)
            except Exception as error:  # it cannot be sent: this request ends, and the others go on
                self.scheduler.cancel(request, error)
                step.ended.append(request)
        for request in step.ended:
            self.answers.finish(request)
        self.recorder.record(step)

    def give_up(self, error):
        """End every request with an error: nothing in the engine is kept."""
        for request in self.scheduler.abandon(error):
            self.answers.finish(request)
        self.answers.refuse_all(error)
        self.recorder.gave_up()

    def finalize(self):
        self.inbox.close()
        self.thread.join(END_S)
        if not self.thread.is_alive():  # else it is in a step that does not end
            self.give_up(Refusal("the model is being unloaded"))
        self.recorder.close()
