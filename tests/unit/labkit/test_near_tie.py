"""A near-tie is told from the reference's own logits."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from labkit.evidence import near_tie


def test_two_tokens_with_the_same_output_row_are_a_near_tie_and_others_are_not(tmp_path: Path) -> None:
    torch.manual_seed(0)
    shape = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    config = LlamaConfig(**shape, num_attention_heads=2, num_key_value_heads=2, tie_word_embeddings=False)
    model = LlamaForCausalLM(config)
    model.save_pretrained(tmp_path / "plain")
    lead = near_tie.margin(str(tmp_path / "plain"), [3, 1, 4])
    assert lead is not None and lead > near_tie.NEAR
    with torch.no_grad():
        best, second = model(torch.tensor([[3, 1, 4]])).logits[0, -1].topk(2).indices
        model.lm_head.weight[second] = model.lm_head.weight[best]
    model.save_pretrained(tmp_path / "tied")
    assert near_tie.margin(str(tmp_path / "tied"), [3, 1, 4]) == 0.0
