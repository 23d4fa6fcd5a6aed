"""GPT-2 as Hugging Face runs it, choosing greedily among the tokens that are text by themselves."""

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

NEAR_TIE = 1e-4  # of two logits that are nearer than this, rounding decides


class Reference:
    """``folder`` holds weights and tokenizer in Hugging Face's layout."""

    def __init__(self, folder: str) -> None:
        torch.set_num_threads(1)
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        size = self.model.config.vocab_size
        texts = [self.tokenizer.decode([id]) for id in range(min(size, len(self.tokenizer)))]
        self.forbidden = torch.ones(size, dtype=torch.bool)
        self.forbidden[[id for id, text in enumerate(texts) if text and "\N{REPLACEMENT CHARACTER}" not in text]] = 0

    def step(self, text: str) -> frozenset[str]:
        """The texts that one greedy step on this text may answer with: several where the best nearly tie."""
        return frozenset(self.tokenizer.decode([id]) for id in self._best(self.tokenizer.encode(text)))

    def generate(self, prompt: str, tokens: int) -> str:
        """The new text of one uninterrupted generation, which keeps its tokens between steps."""
        ids = self.tokenizer.encode(prompt)
        start = len(ids)
        for _ in range(tokens):
            ids.append(self._best(ids)[0])
        return self.tokenizer.decode(ids[start:])

    @torch.inference_mode()
    def _best(self, ids: list[int]) -> list[int]:
        logits = self.model(torch.tensor([ids])).logits[0, -1].masked_fill(self.forbidden, float("-inf"))
        return (logits >= logits.max() - NEAR_TIE).nonzero().flatten().tolist()
