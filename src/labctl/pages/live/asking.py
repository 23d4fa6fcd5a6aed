"""Requests sent from the page: each in a thread and a connection of its own, so that each can be cancelled."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from labctl.pages.live.events import AskEvent
from labctl.triton.conversation import connection
from labkit.client.sequences import SequenceClient
from labkit.client.stop import configs, stop_request, stoppable_steps
from labkit.client.text_model import TextModel
from labkit.errors import LabError
from labkit.evidence.records import RequestRecord, request_id

MOST = 64  # in flight at once
TELL_S = 0.1  # between two looks at a request's answer
PATIENCE_S = 3600.0  # the clock may stand still while a teacher explains
SENT, DONE, FAILED, CANCELLED = "sent", "done", "failed", "cancelled"


@dataclass
class _PageRequest:
    """A request of this page, while it is in flight."""

    number: str
    model: str
    prompt: str
    name: str  # its name in the step log
    cancelled: threading.Event = field(default_factory=threading.Event)


class Asker:
    """Sends texts to the models of one server that continue texts; ``tell`` hears what the page is to take."""

    def __init__(self, endpoint: str, models: Sequence[str], tell: Callable[[AskEvent], None]) -> None:
        self._endpoint, self._tell = endpoint, tell
        self._texts: dict[str, TextModel] = {}
        self._sequences: list[str] = []
        self._page = secrets.token_hex(2)  # so that two pages of one server have different ids
        self._open: dict[str, _PageRequest] = {}
        self._lock = threading.Lock()
        self._stops = stoppable_steps(endpoint, models)
        by_model = configs(endpoint, models)
        self._iterative = {name for name, config in by_model.items() if config.sequence_batching.iterative_sequence}
        sequences = {name for name, config in by_model.items() if config.HasField("sequence_batching")}
        steps = {
            name: [step.model_name for step in config.ensemble_scheduling.step] for name, config in by_model.items()
        }
        #: for each ensemble, the model of it that the page shows: the one that keeps sequences, or the middle one
        self.into: Mapping[str, str] = {
            name: next((step for step in inner if step in sequences), inner[len(inner) // 2])
            for name, inner in steps.items()
            if inner
        }
        for name in models:
            try:
                self._texts[name] = TextModel.of(endpoint, name)
            except LabError:
                if sequences & {*steps.get(name, ())}:  # it takes an id that the client chooses
                    self._sequences.append(name)

    @property
    def models(self) -> list[str]:
        """The models that can be asked."""
        return [*self._texts, *self._sequences]

    def send(self, model: str, prompt: str, tokens: int, count: int = 1) -> list[str]:
        """Ask ``count`` times for ``tokens`` tokens; gives the requests' numbers at once.

        Raises LabError: too many are in flight.
        """
        with self._lock:
            if len(self._open) + count > MOST:
                raise LabError(
                    f"{len(self._open)} requests of this page are in flight, and it sends at most {MOST}",
                    code="page-too-busy",
                )
            # The correlation ids that Triton makes itself are numbers: names such as p7-a1b2 cannot be among them.
            named = "p{}-" + self._page if model in self._iterative else "{}"
            numbers = [request_id() for _ in range(count)]
            requests = [_PageRequest(number, model, prompt, named.format(number)) for number in numbers]
            self._open |= {request.number: request for request in requests}
        for request in requests:
            event = AskEvent(k="ask", n=request.number, name=request.name, model=model, prompt=prompt)
            self._tell({**event, "at": time.monotonic(), "state": SENT})
            name = f"ask {request.number}"
            threading.Thread(target=self._run, args=(request, tokens), name=name, daemon=True).start()
        return numbers

    def cancel(self, number: str) -> bool:
        """Cancel a request of this page. False if it has ended, or is not one of them."""
        request = self._open.get(number)
        if request:
            request.cancelled.set()
        return request is not None

    def close(self) -> None:
        """Cancel all that is in flight."""
        for request in list(self._open.values()):
            request.cancelled.set()

    def _run(self, request: _PageRequest, tokens: int) -> None:
        end: AskEvent = {"k": "ask", "n": request.number}
        send = self._send_sequence if request.model in self._sequences else self._send_stream
        try:
            text, first = send(request, tokens)
            end |= {"state": CANCELLED if request.cancelled.is_set() else DONE, "text": text, "first": first}
        except LabError as error:
            end |= {"state": FAILED, "error": f"{error.what}: {error.why}" if error.why else error.what}
        with self._lock:
            self._open.pop(request.number, None)
        self._tell(end)

    def _send_stream(self, request: _PageRequest, tokens: int) -> tuple[str, float]:
        """The text that came, and the seconds to its first part. Leaving the stream early cancels the request."""
        model = self._texts[request.model]
        sequence = request.name if request.model in self._iterative else ""
        with connection(model, self._endpoint, sequence=sequence) as stream:
            record = model.send(stream, request.prompt, tokens, id=request.number)
            passed_on = 0  # responses that the page has
            while not stream.ended(record, TELL_S) and not request.cancelled.is_set():
                if len(record.responses) > passed_on:
                    passed_on = len(record.responses)
                    self._tell({"k": "ask", "n": request.number, "text": record.text, "first": _first(record)})
            if not request.cancelled.is_set():
                stream.wait(record, timeout=TELL_S)  # raises the request's error
            elif request.model in self._stops:  # Triton does not pass a cancellation on inside an ensemble
                stop_request(self._endpoint, self._stops[request.model], request.number)
        text = record.text if model.decoupled else record.text.removeprefix(request.prompt)
        return text.removesuffix(model.end_text or "\0"), _first(record)

    def _send_sequence(self, request: _PageRequest, tokens: int) -> tuple[str, float]:
        """The same of a sequence: one request of Triton's a token, each with the whole text so far."""
        record = RequestRecord(request.number, request.model, request.prompt, start=time.monotonic())
        text = ""
        with SequenceClient(self._endpoint, request.model, "grpc", timeout=PATIENCE_S) as client:
            for step in range(tokens):
                last = step == tokens - 1 or request.cancelled.is_set()
                text += client.ask(request.prompt + text, int(request.number), start=step == 0, end=last)
                record.responses.append((time.monotonic(), ""))
                self._tell({"k": "ask", "n": request.number, "text": text, "first": _first(record)})
                if last:
                    break
        return text, _first(record)


def _first(record: RequestRecord) -> float:
    """Seconds from a request to its first response."""
    return round(record.ttft_ms / 1e3, 4) if record.responses else 0.0
