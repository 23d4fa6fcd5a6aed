"""Logits to the text of the next token.

The client appends each answer to its text and sends the whole text again, so an answer has to be text: half a
character could not travel. GPT-2's tokens are pieces of bytes, and some end inside a character. Those are not chosen:
of the others the likeliest (greedy), or one drawn by its share of their probability (multinomial).
"""

from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils
from tokenizers import Tokenizer

from labserve.guard import Guard
from labserve.observe.executions import Executions
from labserve.params import BadInput
from labserve.text.vocabulary import mask, spelling
from labserve.triton import parameter, request_names


class TritonPythonModel:
    def initialize(self, args):
        self.guard = Guard(args)
        folder = Path(parameter(args, "model_path"))
        self.words = spelling(Tokenizer.from_file(str(folder / "tokenizer.json")))
        self.forbidden = ~mask(self.words, max(self.words) + 1)
        self.greedy = parameter(args, "sampling") == "greedy"
        self.random = np.random.default_rng()
        self.executions = Executions(args)

    def execute(self, requests):
        with self.executions.execution(request_names(requests)) as line:
            responses, good = self.guard.read(requests, self.texts_of)
            for place, words in good:
                # One-dimensional: one text per row of the batch, which is what clients of this ensemble iterate over.
                tensor = pb_utils.Tensor("OUTPUT_TOKENS", np.array(words, dtype=object))
                responses[place] = pb_utils.InferenceResponse([tensor])
            spelled = {place: b"".join(words).decode(errors="replace") for place, words in good}
            line["made"] = [int(place in spelled) for place in range(len(requests))]
            if self.executions.log.texts:
                line["texts"] = [spelled.get(place, "") for place in range(len(requests))]
        return responses

    def texts_of(self, request):
        logits = pb_utils.get_input_tensor_by_name(request, "INPUT_LOGITS").as_numpy()
        if not logits.size:
            raise BadInput("INPUT_LOGITS", "there is no position in it")
        return [self.words[self.choose(last)] for last in logits[:, -1]]

    def choose(self, logits):
        """The next token id, from the logits [vocab] of the last position."""
        known = min(len(logits), len(self.forbidden))  # a model may have more ids than its tokenizer has tokens
        scores = np.where(self.forbidden[:known], -np.inf, logits[:known].astype(np.float64))
        if not np.isfinite(scores.max()):  # NaN is greater than anything
            raise BadInput("INPUT_LOGITS", "the scores of the last position must be finite numbers; these are not")
        if self.greedy:
            return int(scores.argmax())
        shares = np.exp(scores - scores.max()).cumsum()
        return int(shares.searchsorted(self.random.random() * shares[-1], side="right"))

    def finalize(self):
        self.executions.close()
