"""What takes requests to their ends: the one loop of every model that answers token by token.

    submit ──▶ plan ──▶ clock ──▶ compute ──▶ answer ──▶ end ──▶ record

The scheduler decides and computes: labsched's, vLLM's (labserve/vllm/engine.py), or slots (slot_scheduler.py). In vLLM
this is `EngineCoreProc` (vllm/v1/engine/core.py): its input queue, and `run_busy_loop`.

The threads of a model, and what each does:

- Triton's calls `execute`. It only fills the driver's queue (`DriverThread.put`), or it is itself the driver's.
- The driver's decides, computes and ends requests: nothing else changes one.
- The writer's (observe/recorder.py) sends the answers, and makes lines, texts and metrics of what has happened: all of
  it in the order in which the driver said so, beside the next step. Where Triton's thread is the driver's it sends the
  answers itself, because they have to be there before `execute` gives the requests back.
- The watchdog's (observe/watched_log.py) looks once a second whether a step still returns.
"""

import os
import queue
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from labsched.own import with_line
from labsched.plan import StepPlan
from labsched.policy import GATHER_S
from labserve.guard import Guard
from labserve.observe.recorder import Recorder
from labserve.params import BadInput, Refusal
from labserve.triton import send, text_response

CLOSE = object()
END_S = 10.0  # how long an unloaded model waits for its last step
GONE = "the request was cancelled by its client"
FAILED_STEPS = 5  # in a row
# PyTorch's words and those of Triton, the compiler: after such an error, each later call of the process fails too.
LOST = ("CUDA error", "Triton Error [CUDA]")
ASK_S = 0.5  # seconds of a round of questions at least
FEW = 16  # waiting requests that are asked about in a round
MOST = 0.02  # share of the time for questions


class Answers:
    """How a kind of request is answered (vLLM: `OutputProcessor`, vllm/v1/engine/output_processor.py).

    As it is, with nothing: the model's `execute` returns the answers (CodeGen). An error concerns its request alone.
    """

    decoupled = True  # whether a request may have several responses, so that `execute` returns none

    def stream(self, request: Any, tokens: Any) -> Sequence[Any]:
        """The responses with what is new of an answer. The last one of a request that has `finished` is its final."""
        return ()

    def last(self, request: Any) -> Any:
        """The final response of a request that has finished, and whose last token had no response; None for none."""


class PieceAnswers(Answers):
    """A response for each piece of text that a step has made (`SlotRequest`)."""

    def stream(self, request: Any, tokens: Any) -> Sequence[Any]:
        return [text_response(request.piece, **request.outputs)]

    def last(self, request: Any) -> Any:
        return text_response("")


class Driver:
    """Drives a scheduler, in one of three ways.

    - `DriverThread`, in a thread of its own: labs 03 and 05 to 09.
    - Until no request is left, which is static batching: simple-gpt2 (gpt2/running.py), CodeGen (codegen/running.py).
    - A step at each execution, when Triton schedules the requests again: lab 02 (gpt2/running.py).

    All of it belongs to one thread, or to the thread that holds a lock of the caller's.
    """

    def __init__(self, guard: Guard, scheduler: Any, answers: Answers, recorder: Recorder) -> None:
        self.guard, self.scheduler, self.answers, self.recorder = guard, scheduler, answers, recorder
        self.live: dict[Any, None] = {}  # the requests that were submitted and have not ended, in their order

    def submit(self, request: Any, put: float | None = None) -> None:
        """Hand a request over to the scheduler. Raises what that raises for a request that it cannot serve.

        Args:
            put: when Triton handed it over, in monotonic seconds; else it is now.
        """
        self.scheduler.submit(request)
        self.live[request] = None
        self.recorder.arrived(request, time.monotonic() if put is None else put)

    def compute(self, plan: StepPlan | None = None) -> None:
        """Compute a step, answer with what it has made, end the requests that are done, and record it.

        Without a plan it is the step that the scheduler has decided already.
        """
        step = self.scheduler.step(plan)
        answered = {request for request, tokens in step.produced if self.stream(request, tokens)}
        for request in step.finished:
            self.end(request, answer=request not in answered)
        self.recorder.record(step)

    def stream(self, request: Any, tokens: Sequence[Any]) -> bool:
        """Answer with new tokens. Returns whether that was the final response."""
        try:
            responses = self.answers.stream(request, tokens)
            for place, response in enumerate(responses, 1):
                self._send(request, response, final=request.finished and place == len(responses))
        except Exception as error:  # this request ends, and the others go on
            self._cut(request, error)
            return True
        return bool(responses) and bool(request.finished)

    def _send(self, request: Any, response: Any, final: bool) -> None:
        send(request.source, response, final)

    def _refuse(self, request: Any, error: Exception) -> None:
        """Answer a request with an error."""
        self.guard.refuse(request.source, error)

    def _cut(self, request: Any, error: Exception) -> None:
        """End a request whose answer cannot be sent."""
        self._refuse(request, error)
        self.scheduler.cancel(request, error)
        self.end(request, answer=False)

    def run(self, plan: StepPlan) -> None:
        """Compute a step as soon as the clock lets it. If it fails, its requests are as if they had not been there."""
        try:
            while not self.recorder.ready(plan):
                pass
            self.compute(plan)
        except BaseException:  # Triton answers the requests with the error, or they are tried again
            self.forget(plan.batch)
            raise

    def end(self, request: Any, answer: bool = True) -> None:
        """A request has ended, whatever the reason: the only way out. Harmless for one that has ended before.

        Args:
            answer: whether it gets a final response; else it has it, its client has gone, or Triton answers it.
        """
        if request in self.live:
            del self.live[request]
            if answer:
                self._finish(request)
            self.recorder.ended(request)

    def _finish(self, request: Any) -> None:
        """Send the final response: the request's error, if it has one."""
        try:
            if request.error:
                raise request.error
            if response := self.answers.last(request):
                self._send(request, response, final=True)
        except Exception as error:
            self._refuse(request, error)

    def cancel(self, request: Any, error: Exception | None = None) -> None:
        """End a live request whose client does not want it any more; `error` is its last response, if any."""
        self.scheduler.cancel(request)
        request.error = error
        self.end(request)

    def forget(self, requests: Sequence[Any]) -> None:
        """Take requests out as if they had not been there."""
        for request in requests:
            self.scheduler.forget(request)
            if request in self.live:
                del self.live[request]
                self.recorder.forget(request)

    def give_up(self, error: Exception) -> None:
        """End every request with an error: nothing in the engine is kept."""
        for request in self.scheduler.abandon(error):
            self.end(request)
        self.recorder.gave_up()

    def close(self) -> None:
        """The model is being unloaded."""
        self.recorder.close()


class Stop(NamedTuple):
    """A request to end another one: the live request that its client calls `id`."""

    id: str
    confirm: Callable[[], None]  # sends an empty final response


class Tried(NamedTuple):
    """A request comes again: its grammar has been tried."""

    request: Any


class Unsent(NamedTuple):
    """A response could not be sent: the writer has answered the request with the error."""

    request: Any
    error: Exception


class DriverThread(Driver):
    """A driver in a thread of its own. Triton's thread only fills its queue (`put`).

    The requests of one execution arrive together. The queue belongs to both threads; all else belongs to the driver's,
    which sets `_broken` before it empties the queue for the last time.

    It survives a failed step, but not five in a row: its engine is dead then, and so is the server. Triton calls a
    model ready also when its process has ended; so that probes, `labctl status` and clients see it, the whole server
    ends, and `labctl restart` or a cluster begins it anew.

    Args:
        read: a request as the scheduler takes it, or a Stop, from one of Triton's and its number. Raises Refusal.
        gather_s: how long a static batch waits for more requests.
        beside: the folder of model.py, where an error or an endless loop may be a learner's.
        forgiving: whether failed steps are no reason to end the server: a learner's own file may be why.
    """

    def __init__(
        self,
        guard: Guard,
        scheduler: Any,
        answers: Answers,
        recorder: Recorder,
        read: Callable[[Any, int], Any],
        gather_s: float = GATHER_S,
        beside: Path | None = None,
        forgiving: bool = False,
    ) -> None:
        super().__init__(guard, scheduler, answers, recorder)
        self._read, self._gather_s, self._beside, self._forgiving = read, gather_s, beside, forgiving
        self.clients = Clients(scheduler, self.live, lambda request: self.cancel(request, Refusal(GONE)))
        # The requests of an execution, or CLOSE, Tried or Unsent alone; with the moment (monotonic seconds) at which
        # Triton put them.
        self._queue: queue.SimpleQueue[tuple[float, Sequence[Any]]] = queue.SimpleQueue()
        self._put = 0.0  # that moment for the request that is taken now
        self._rest: deque[Any] = deque()  # requests of the same execution that are not taken yet
        self._compiling: dict[Any, None] = {}  # their grammars are being tried in another process
        self._count = 0
        self._failed_steps = 0  # in a row
        self._broken: Exception | None = None  # why the loop has ended; nothing can be served any more
        self.thread = threading.Thread(target=self.serve, name="driver", daemon=True)

    # -- Triton's thread ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to serve."""
        self.thread.start()

    def put(self, sources: Sequence[Any]) -> list[None] | None:
        """Take Triton's requests. Returns what `execute` has to return: responses come later."""
        self._queue.put((time.monotonic(), sources))
        if self._broken:
            self._refuse_queued(self._broken)
        return None if self.answers.decoupled else [None] * len(sources)

    def close(self) -> None:
        """End the thread, and each request that is left with an error: the model is being unloaded."""
        self._queue.put((0.0, [CLOSE]))
        self.thread.join(END_S)
        if not self.thread.is_alive():  # else it is in a step that does not end
            self.give_up(Refusal("the model is being unloaded"))
        super().close()

    # -- the loop -----------------------------------------------------------------------------------------------------

    def serve(self) -> None:
        """One step after the other; asleep while there is nothing to do.

        If it ends with an error, every request ends with that, and so does a later one.
        """
        self.recorder.log.watch(self.step, self._hung, self._beside)
        try:
            while self.receive(wait=self.scheduler.idle):
                try:
                    self.step()
                    self._failed_steps = 0
                except Exception as error:  # of the engine, of a learner's file, or of the recorder
                    self._failed(error)
        except Exception as error:
            self._broken = error  # before the queue is emptied: what is put meanwhile is refused by `put`
            self._refuse_all(error)
            if not self._forgiving:
                self._end_server(f"{type(error).__name__}: {error}")

    def step(self) -> None:
        """Plan, compute and answer one step, unless the clock holds it."""
        self.clients.drop_gone()
        self.scheduler.ahead = self.recorder.clock.free  # else vLLM may not decide a step before the last is over
        if self.scheduler.in_flight and not self.scheduler.ahead:
            self.compute()  # one that was decided before the clock was stopped
            return
        plan = self.scheduler.plan()
        while self.clients.gone(plan.admitted):  # a request whose client has gone does not join
            plan = self.scheduler.plan()
        if not self.recorder.ready(plan) or self.scheduler.idle:
            return  # the clock stands still, or nothing is left; what arrives meanwhile is received
        self.compute(plan)

    def _failed(self, error: Exception) -> None:
        """A step has failed: its requests get their answers, and the server ends where the engine is dead."""
        told = with_line(error, self._beside) if self._beside else error
        self.give_up(Refusal(f"the step failed: {self.guard.words(told)}"))
        self._failed_steps += 1
        cause: BaseException | None = error
        while cause is not None:
            if any(words in str(cause) for words in LOST):
                self._end_server(str(cause).splitlines()[0])
                break
            cause = cause.__cause__ or cause.__context__
        if self._failed_steps >= FAILED_STEPS and not self._forgiving:
            self._end_server(f"{self._failed_steps} steps in a row have failed")

    def _end_server(self, why: str) -> None:
        """The engine is dead: end the server, when its requests have their answers."""
        self.recorder.settle()
        end_dead_server(why)

    def _hung(self, where: str) -> None:
        if not self._forgiving:
            end_dead_server(f"a step does not return: {where}")

    def give_up(self, error: Exception) -> None:
        for request in [*self._compiling]:
            self._drop_compiling(request, error)
        super().give_up(error)

    def _refuse_all(self, error: Exception) -> None:
        """Answer every request that is here. Nothing records how it ends: the server does so, too."""
        for request in [*self._compiling]:
            self._drop_compiling(request, error)
        for request in self.live:
            request.error = error
            self._finish(request)
        self.live.clear()
        self._refuse_sources(self._rest, error)
        self._refuse_queued(error)

    def _refuse_queued(self, error: Exception) -> None:
        """Refuse the requests that were not received."""
        with suppress(queue.Empty):
            while True:
                self._refuse_sources(self._queue.get_nowait()[1], error)

    def _refuse_sources(self, items: Iterable[Any], error: Exception) -> None:
        for item in items:
            if item is not CLOSE and not isinstance(item, Tried | Unsent):  # which have been refused
                self.guard.refuse(item, error)

    # -- answers, which the writer sends ------------------------------------------------------------------------------

    def _send(self, request: Any, response: Any, final: bool) -> None:
        self.recorder.writer.call(self._deliver, request, response, final)

    def _refuse(self, request: Any, error: Exception) -> None:
        self.recorder.writer.call(self._deliver_error, request, error)

    def _deliver(self, request: Any, response: Any, final: bool) -> None:
        """In the writer's thread: send a response. If it fails, the client has the error, and the driver is told."""
        if request.cut:
            return
        try:
            send(request.source, response, final)
        except Exception as error:
            self._deliver_error(request, error)
            self._queue.put((time.monotonic(), [Unsent(request, error)]))

    def _deliver_error(self, request: Any, error: Exception) -> None:
        if not request.cut:
            request.cut = True
            self.guard.refuse(request.source, error)

    # -- arrivals -----------------------------------------------------------------------------------------------------

    def receive(self, wait: bool) -> bool:
        """Submit the requests that have arrived; with `wait`, sleep until there is one. False after `close`.

        Once the step in flight is over the engine must not wait: what was not received by then comes a step later.
        """
        deadline = time.monotonic() + self.scheduler.patience_s
        while True:
            try:
                item = self._next(wait)
            except queue.Empty:
                return True
            if item is CLOSE:
                return False
            self._take(item)
            if wait and self.scheduler.static:
                self._gather()
            wait = False
            if time.monotonic() > deadline:
                return True

    def _next(self, block: bool = True, timeout: float | None = None) -> Any:
        """The next of Triton's requests, one that comes again, or CLOSE. Raises queue.Empty."""
        if not self._rest:
            self._put, items = self._queue.get(block, timeout)
            self._rest.extend(items)
        return self._rest.popleft()

    def _gather(self) -> None:
        """Wait for more requests, until the batch is full or the limit is over: none can join a static batch later."""
        deadline = time.monotonic() + self._gather_s
        while len(self.scheduler.waiting) < self.scheduler.max_running:
            try:
                item = self._next(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                return
            if item is CLOSE:
                self._queue.put((0.0, [CLOSE]))
                return
            self._take(item)

    def _take(self, item: Any) -> None:
        """Submit one of Triton's requests, or answer it with an error that names what is wrong.

        One whose grammar is being tried in another process comes here again, by the queue.
        """
        if isinstance(item, Unsent):
            if item.request in self.live:
                self._cut(*item)
            return
        request, source = item, item
        try:
            if isinstance(item, Tried):
                if item.request not in self._compiling:  # it has been answered meanwhile
                    return
                del self._compiling[item.request]
                request, source = item.request, item.request.source
            else:
                self._count += 1
                request = self._read(item, self._count)
                if isinstance(request, Stop):
                    self._stop(request.id)
                    request.confirm()
                    return
                tried = getattr(request, "grammar", None)
                if tried and not tried.done():
                    put = self._put
                    self._compiling[request] = None
                    tried.add_done_callback(lambda _: self._queue.put((put, [Tried(request)])))
                    return
            self.submit(request, self._put)
        except Exception as error:
            self.guard.refuse(source, error)

    def _stop(self, id: str) -> None:
        """Cancel the live request to which its client gave that id.

        Raises BadInput if several have it: clients choose ids, and one must not end another's answer.
        """
        here = [*self.live, *self._compiling]
        chosen = [request for request in here if id and request.source.request_id() == id]
        if len(chosen) > 1:
            raise BadInput("stop", f"{len(chosen)} requests have the id {id}; none was stopped")
        for request in chosen:
            if request in self._compiling:  # neither the scheduler nor the step log knows it
                self._drop_compiling(request, Refusal(GONE))
            else:
                self.cancel(request)

    def _drop_compiling(self, request: Any, error: Exception) -> None:
        del self._compiling[request]
        self.guard.refuse(request.source, error)


class Clients:
    """Asks Triton whether clients are still there (vLLM's front end says so: `abort_requests`, vllm/v1/engine/core.py).

    A question is a message to the server and back, and the next step waits for it. So in rounds of half a second or
    more it asks about every request in the batch and a few waiting ones, spread over the round; and about each request
    once before it joins.

    Args:
        scheduler: its `running` and `waiting` requests are asked about.
        live: the requests that have not ended.
        cancel: ends a request whose client has gone.
    """

    def __init__(self, scheduler: Any, live: Any, cancel: Callable[[Any], None]) -> None:
        self._scheduler, self._live, self._cancel = scheduler, live, cancel
        self._round: list[Any] = []  # requests that are still to be asked about
        self._due = time.monotonic() + ASK_S  # when the next question is due, in monotonic seconds
        self._gap = ASK_S  # seconds between two questions
        self._next = 0  # where in the queue the next round begins
        self._asked: set[Any] = set()  # admitted requests that were asked about in this round

    def drop_gone(self) -> None:
        """Ask the questions that are due, and cancel the requests whose clients have gone."""
        began = time.monotonic()
        self._due = max(self._due, began - ASK_S)
        while self._due < began:
            if not self._round:
                self._begin()
            started = time.monotonic()
            if self._round and (request := self._round.pop()) in self._live:
                self._has_gone(request)
            self._due += max(self._gap, (time.monotonic() - started) / MOST)

    def _begin(self) -> None:
        """A new round."""
        self._asked.clear()
        waiting = list(self._scheduler.waiting)
        self._round = [*self._scheduler.running, *waiting[self._next : self._next + FEW]]
        self._next = self._next + FEW if self._next + FEW < len(waiting) else 0
        self._gap = ASK_S / max(1, len(self._round))

    def gone(self, admitted: Sequence[Any]) -> bool:
        """Whether clients of requests that would join have gone; such requests are cancelled."""
        if not admitted:
            return False
        new = [request for request in admitted if request not in self._asked]
        self._asked.update(new)
        cancelled = [self._has_gone(request) for request in new]
        return any(cancelled)

    def _has_gone(self, request: Any) -> bool:
        gone: bool = request.source.is_cancelled()
        if gone:
            self._cancel(request)
        return gone


def end_dead_server(why: str) -> None:
    """Say why in the log, and end this process and Triton; in any other process than Triton's stub, only say why.

    The log is Triton's stderr, which a stub shares: Triton's logger would take the words to the server in a thread that
    ends with this process.
    """
    print(f"the engine is dead ({why}): this server ends; labctl restart begins it anew", file=sys.stderr, flush=True)
    if "c_python_backend_utils" in sys.builtin_module_names:
        os.kill(os.getppid(), signal.SIGTERM)
        os._exit(1)
