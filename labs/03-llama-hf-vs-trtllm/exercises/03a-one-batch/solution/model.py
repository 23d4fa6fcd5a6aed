"""Llama through Hugging Face's `generate`, for the requests that Triton hands over together."""

import torch
import triton_python_backend_utils as pb_utils

from labserve.text.hf_generate import text_array
from labserve.triton import input_reader, parameter, text_of

PAD = 0  # any id will do, because the mask hides it


class TritonPythonModel:
    def initialize(self, args):
        from transformers import AutoModelForCausalLM, AutoTokenizer  # quicker once labserve.triton is imported

        folder = parameter(args, "model_path")
        torch.set_num_threads(int(parameter(args, "threads")))
        self.tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        self.model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, dtype=torch.float32).eval()

    def execute(self, requests):
        prompts = [self.tokenizer.encode(text_of(request, "text_input").decode()) for request in requests]
        limits = [int(input_reader(request)("max_tokens").item()) for request in requests]
        return [self.response(row) for row in self.generated(prompts, limits)]

    def generated(self, prompts, limits):
        """The ids of each prompt and of its answer, which has `limit` tokens."""
        longest = max(map(len, prompts))
        fill = [longest - len(prompt) for prompt in prompts]

        # Generation goes on at the right, so what fills a row up stands on the left.
        ids = [[PAD] * n + prompt for n, prompt in zip(fill, prompts, strict=True)]
        mask = [[0] * n + [1] * len(prompt) for n, prompt in zip(fill, prompts, strict=True)]
        rows = self.compute(ids, mask, max(limits))
        return [row[n : longest + limit] for row, n, limit in zip(rows, fill, limits, strict=True)]

    def compute(self, ids, mask, tokens):
        """The rows of `ids`, which must be equally long, each with `tokens` more ids.

        `mask` is of the same shape: 1 where `ids` has a token, 0 where it is only filled up.
        """
        with torch.inference_mode():
            rows = self.model.generate(
                torch.tensor(ids),
                attention_mask=torch.tensor(mask),
                max_new_tokens=tokens,
                do_sample=False,
                pad_token_id=PAD,
                eos_token_id=None,
            )
        return rows.tolist()

    def response(self, row):
        known = [token for token in row if token < len(self.tokenizer)]
        text = self.tokenizer.decode(known, skip_special_tokens=True)
        return pb_utils.InferenceResponse([pb_utils.Tensor("text_output", text_array([text], (1, 1)))])
