"""Whether two right programs may disagree on a token: the reference's two best logits there are almost the same."""

from __future__ import annotations

from collections.abc import Sequence

NEAR = 1e-4  # sums in another order move an fp32 logit about so far


def margin(weights: str, ids: Sequence[int]) -> float | None:
    """By how much the best next token leads after ``ids``, in fp32 logits; None without torch.

    Args:
        weights: a folder that transformers can load.
    """
    try:
        import torch
        from transformers import AutoModelForCausalLM
    except ImportError:  # the client's image is small
        return None
    model = AutoModelForCausalLM.from_pretrained(weights, dtype=torch.float32)
    with torch.inference_mode():
        best = model(torch.tensor([list(ids)])).logits[0, -1].topk(2).values
    return float(best[0] - best[1])
