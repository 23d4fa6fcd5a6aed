"""A batch of texts that is begun together, computed by PyTorch (see batch_decoder.py)."""

from typing import Any

import torch

from labserve.codegen.batch_decoder import Padding, Scores


class TorchDecoder:
    """Hugging Face's model as it is, on a CPU or a GPU."""

    def __init__(self, folder: str, device: str, threads: int, exact: bool) -> None:
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(threads)
        dtype = torch.float32 if exact or device == "cpu" else torch.float16
        model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, dtype=dtype)
        self._model = model.to(device).eval()
        self._padding = Padding([[0]])
        self._cache: Any = None

    def begin(self, prompts: list[list[int]]) -> Scores:
        from transformers import DynamicCache

        self._padding, self._cache = Padding(prompts), DynamicCache(config=self._model.config)
        return self._scores()

    def step(self, keep: list[int], tokens: list[int]) -> Scores:
        if len(keep) < len(self._padding.mask):
            self._cache.batch_select_indices(torch.tensor(keep, device=self._model.device))
        self._padding.step(keep, tokens)
        return self._scores()

    def _scores(self) -> Scores:
        ids, mask, positions = (
            torch.from_numpy(array).to(self._model.device)
            for array in (self._padding.ids, self._padding.mask, self._padding.positions)
        )
        with torch.inference_mode():
            out = self._model(
                input_ids=ids,
                attention_mask=mask,
                position_ids=positions,
                past_key_values=self._cache,
                use_cache=True,
                logits_to_keep=1,
            )
        logits: Scores = out.logits[:, -1].float().cpu().numpy()
        return logits
