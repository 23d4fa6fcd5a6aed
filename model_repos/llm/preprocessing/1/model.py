"""Text to token ids, and words to be avoided or stopped at to the ids that spell them."""

import numpy as np
import triton_python_backend_utils as pb_utils
from tokenizers import Tokenizer

from labserve.params import BadInput, text
from labserve.triton import parameter

MOST_BYTES = 2**18  # no context of ours is as long; what is longer is refused before it costs anything


class TritonPythonModel:
    def initialize(self, args):
        # The tokenizers library alone: transformers around it would take seconds of every start.
        self.tokenizer = Tokenizer.from_file(f"{parameter(args, 'tokenizer_dir')}/tokenizer.json")
        self.tokenizer.no_padding()
        self.tokenizer.no_truncation()

    def execute(self, requests):
        responses = []
        for request in requests:
            try:
                responses.append(pb_utils.InferenceResponse(self.tensors(request)))
            except BadInput as error:
                responses.append(pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error))))
        return responses

    def tensors(self, request):
        def rows(name):
            return pb_utils.get_input_tensor_by_name(request, name).as_numpy()

        query = rows("QUERY")
        if query.shape[1:] != (1,):
            raise BadInput("QUERY", f"one text a row, please; the shape is {list(query.shape)}")
        prompts = [self.tokenizer.encode(text(raw, "QUERY", MOST_BYTES)).ids for raw in query[:, 0]]
        lengths = [len(prompt) for prompt in prompts]
        ids = np.zeros((len(prompts), max(lengths)), dtype=np.int32)
        for row, prompt in zip(ids, prompts, strict=True):
            row[: len(prompt)] = prompt
        return [
            pb_utils.Tensor("INPUT_ID", ids),
            pb_utils.Tensor("REQUEST_INPUT_LEN", np.array(lengths, dtype=np.int32)[:, None]),
            pb_utils.Tensor("BAD_WORDS_IDS", self.words(rows("BAD_WORDS_DICT"), "BAD_WORDS_DICT")),
            pb_utils.Tensor("STOP_WORDS_IDS", self.words(rows("STOP_WORDS_DICT"), "STOP_WORDS_DICT")),
            pb_utils.Tensor("REQUEST_OUTPUT_LEN", rows("REQUEST_OUTPUT_LEN")),
        ]

    def words(self, lists, name):
        """[n, words] texts to [n, 2, ids]: the ids of all words one after the other, and where each word ends.

        A text may name several words, divided by commas. Without words the lower row says -1.
        """
        flat, ends = [], []
        for row in lists.reshape(len(lists), -1):
            ids, offsets = [], []
            for raw in row:
                for word in (text(raw, name, MOST_BYTES) if raw else "").split(","):
                    if word:
                        ids += self.tokenizer.encode(word, add_special_tokens=False).ids
                        offsets.append(len(ids))
            flat.append(ids)
            ends.append(offsets)
        width = max(1, *(len(ids) for ids in flat), *(len(offsets) for offsets in ends))
        table = np.zeros((len(flat), 2, width), dtype=np.int32)
        table[:, 1] = -1
        for row, ids, offsets in zip(table, flat, ends, strict=True):
            row[0, : len(ids)] = ids
            row[1, : len(offsets)] = offsets
        return table
