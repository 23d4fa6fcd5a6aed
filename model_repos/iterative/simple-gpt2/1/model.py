"""simple-gpt2: the usual way. A batch is formed once and runs until its longest member is done.

Whoever arrives while a batch runs waits for all of it: look at when the second request gets its first token.
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
        self.engine = Engine(
            setup.text("model_path"),
            kv_cache=setup.flag("kv_cache"),
            slots=setup.config["max_batch_size"],
            device=setup.device,
            threads=setup.number("threads"),
        )
        self.log = StepLog(setup.text("run_dir"), setup.model, setup.instance)
        self.gauges = Gauges(
            setup.model,
            active_sequences="Sequences in the last step",
            generated_tokens_total="Tokens generated",
        )
        pb_utils.Logger.log_info(f"{setup.model}: {self.engine.decoder.bytes / 1e6:.0f} MB of KV cache")

    def execute(self, requests):
        # Triton hands over a whole batch and waits here: nobody can join until we return.
        batch = {}
        for number, request in enumerate(requests):
            sender = request.get_response_sender()
            try:
                generation = self.engine.begin(input_text(request, "text_input"), request.parameters())
                batch[request.request_id() or f"{id(request):x}-{number}"] = (generation, sender)
            except BadRequest as error:
                refuse(sender, error)
        try:
            while batch:
                self.step(batch)
        except Exception as error:  # the model failed, not a request: every one of them is told
            for generation, sender in batch.values():
                self.engine.end(generation)
                refuse(sender, error)
        self.gauges.set(active_sequences=0)

    def step(self, batch):
        """One token for everyone in the batch; those who are done leave it, and nobody takes their place."""
        began = time.monotonic()
        prefill = sum(generation.is_new for generation, _ in batch.values())
        answers = self.engine.step([generation for generation, _ in batch.values()])
        ids = list(batch)
        for id_, (text, last) in zip(ids, answers, strict=True):
            generation, sender = batch[id_]
            if last or sender.is_cancelled():
                self.engine.end(generation)
                del batch[id_]
            if last:
                sender.send(text_response("text_output", text), flags=FINAL)
            elif id_ not in batch:
                sender.send(flags=FINAL)  # cancelled: nobody reads on
            else:
                sender.send(text_response("text_output", text))
        self.log.step(began, ids, prefill=prefill, slots_used=self.engine.decoder.used)
        self.gauges.set(active_sequences=len(ids))
        self.gauges.add(generated_tokens_total=len(ids))

    def finalize(self):
        self.log.close()
