"""Text to token ids, and words to be avoided or stopped at to the ids that spell them."""

import numpy as np
import triton_python_backend_utils as pb_utils

from labserve.guard import Guard
from labserve.text.prompts import open_tokenizer, pad_prompts, texts, word_table
from labserve.triton import input_reader, parameter


class TritonPythonModel:
    def initialize(self, args):
        self.guard = Guard(args)
        self.tokenizer = open_tokenizer(parameter(args, "tokenizer_dir"))

    def execute(self, requests):
        return self.guard.each(requests, self.tensors)

    def tensors(self, request):
        rows = input_reader(request)
        ids, lengths = pad_prompts([self.tokenizer.encode(text).ids for text in texts(rows("QUERY"))], np.int32)
        return [
            pb_utils.Tensor("INPUT_ID", ids),
            pb_utils.Tensor("REQUEST_INPUT_LEN", lengths),
            pb_utils.Tensor("BAD_WORDS_IDS", word_table(rows("BAD_WORDS_DICT"), "BAD_WORDS_DICT", self.spell)),
            pb_utils.Tensor("STOP_WORDS_IDS", word_table(rows("STOP_WORDS_DICT"), "STOP_WORDS_DICT", self.spell)),
            pb_utils.Tensor("REQUEST_OUTPUT_LEN", rows("REQUEST_OUTPUT_LEN")),
        ]

    def spell(self, word):
        return [self.tokenizer.encode(word, add_special_tokens=False).ids]
