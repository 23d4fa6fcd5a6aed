"""iterative-gpt2: iterative scheduling. ``execute`` makes one token for each request and hands them all back.

Triton's scheduler then forms the next batch from the requests that came back and those that are new. A newcomer joins
at the next token, and whoever is done leaves at once. (Others call this continuous or in-flight batching; see Orca,
Yu et al., OSDI 2022, "iteration-level scheduling".)
"""

import time

import triton_python_backend_utils as pb_utils
from labserve.backend import FINAL, Gauges, Setup, input_text, refuse, text_response
from labserve.generation import Engine
from labserve.params import BadRequest
from labserve.steplog import StepLog


class TritonPythonModel:
    def initialize(self, args):
        setup = Setup(args)
        self.slots = setup.config["max_batch_size"]
        self.idle = setup.config["sequence_batching"]["max_sequence_idle_microseconds"] / 1e6
        self.engine = Engine(
            setup.text("model_path"),
            kv_cache=setup.flag("kv_cache"),
            slots=self.slots,
            device=setup.device,
            threads=setup.number("threads"),
        )
        self.log = StepLog(setup.text("run_dir"), setup.model, setup.instance)
        self.gauges = Gauges(
            setup.model,
            active_sequences="Sequences whose state is kept",
            generated_tokens_total="Tokens generated",
            swept_sequences_total="Sequences dropped because nothing was heard of them (cancelled or idle)",
        )
        self.running = {}  # correlation id -> its generation
        pb_utils.Logger.log_info(f"{setup.model}: {self.engine.decoder.bytes / 1e6:.0f} MB of KV cache")

    def execute(self, requests):
        began = time.monotonic()
        batch = []
        for request in requests:
            id_, sender = request.correlation_id(), request.get_response_sender()
            starts = pb_utils.get_input_tensor_by_name(request, "START").as_numpy().reshape(-1)[0]
            try:
                if starts:
                    self.forget(id_)  # an old sequence of this id can only be one that was cancelled
                    self.running[id_] = self.engine.begin(input_text(request, "text_input"), request.parameters())
                elif id_ not in self.running:
                    raise BadRequest(f"sequence {id_} has been idle for more than {self.idle:g} s and was dropped")
                batch.append((id_, request, sender))
            except BadRequest as error:
                refuse(sender, error)
        if batch:
            try:
                self.step(began, batch)
            except Exception as error:  # the model failed, not a request: every one of them is told
                for id_, _, sender in batch:
                    self.forget(id_)
                    refuse(sender, error)

    def step(self, began, batch):
        """One token for everyone in the batch, then back to Triton's scheduler with those who are not done."""
        ids = [id_ for id_, _, _ in batch]
        self.sweep(began, keep=ids)
        prefill = sum(self.running[id_].is_new for id_ in ids)
        answers = self.engine.step([self.running[id_] for id_ in ids])
        for (id_, request, sender), (text, last) in zip(batch, answers, strict=True):
            if last:
                sender.send(text_response("text_output", text), flags=FINAL)
                self.forget(id_)
            else:
                sender.send(text_response("text_output", text))
                request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
        self.log.step(began, ids, prefill=prefill, decode=len(ids) - prefill, slots_used=len(self.running))
        self.gauges.set(active_sequences=len(self.running))
        self.gauges.add(generated_tokens_total=len(ids))

    def sweep(self, now, keep):
        """Drop what nobody asks for any more.

        Triton never says that a client cancelled or that a sequence idled out: it just stops scheduling it. So a
        sequence goes when it has not been seen for the idle limit, or when a newcomer needs its place: Triton admits no
        more sequences than we have slots, so the one unseen for longest is then already dead.
        """
        others = sorted((g.seen, id_) for id_, g in self.running.items() if id_ not in keep)
        surplus = len(self.running) - self.slots
        for number, (seen, id_) in enumerate(others):
            if number < surplus or now - seen > self.idle:
                self.forget(id_)
                self.gauges.add(swept_sequences_total=1)

    def forget(self, id_):
        generation = self.running.pop(id_, None)
        if generation:
            self.engine.end(generation)

    def finalize(self):
        self.log.close()
