"""CodeGen's weights as GPT-J's: ``python3 -m labserve.codegen.as_gptj FROM TO``, for builders that know GPT-J only.

The two architectures compute the same. CodeGen keeps the projections of attention in one matrix, in the order in which
it was trained on four accelerators: for each of them its share of the queries, the values and the keys. Runs in the
images of TensorRT-LLM, whose Python and transformers are older than the project's own.
"""

import shutil
import sys
from pathlib import Path
from typing import Any

PARTS = 4  # accelerators of the training
NAMES = ("q_proj", "v_proj", "k_proj")
SAME = (
    "vocab_size",
    "n_positions",
    "n_embd",
    "n_layer",
    "n_head",
    "n_inner",
    "rotary_dim",
    "activation_function",
    "layer_norm_epsilon",
    "bos_token_id",
    "eos_token_id",
)


def split(qkv: Any) -> dict[str, Any]:
    """One matrix [3 * width, width] as those of queries, values and keys, [width, width] each."""
    width = qkv.shape[1]
    shares = qkv.reshape(PARTS, len(NAMES), width // PARTS, width)
    return {name: shares[:, place].reshape(width, width).contiguous() for place, name in enumerate(NAMES)}


def convert(source: Path, target: Path) -> None:
    """Write a GPT-J folder for ``transformers``; one that is GPT-J already is written as it is. Raises ValueError."""
    from transformers import AutoConfig, AutoModelForCausalLM, GPTJConfig, GPTJForCausalLM

    config = AutoConfig.from_pretrained(source, local_files_only=True)
    if config.model_type not in ("codegen", "gptj"):
        raise ValueError(f"{source} is neither CodeGen nor GPT-J, but {config.model_type}")
    model = AutoModelForCausalLM.from_pretrained(source, local_files_only=True)
    if config.model_type == "codegen":
        weights: dict[str, Any] = {}
        for name, tensor in model.named_parameters():
            layer, attention, _ = name.partition("qkv_proj.weight")
            if attention:
                parts = split(tensor.detach())
                weights |= {f"{layer}{projection}.weight": part for projection, part in parts.items()}
            else:
                weights[name] = tensor
        sizes = {key: getattr(config, key) for key in SAME}
        model = GPTJForCausalLM(GPTJConfig(**sizes, tie_word_embeddings=False))
        if unlike := set(weights) ^ {name for name, _ in model.named_parameters()}:
            raise ValueError(f"{source} has other weights than CodeGen's: {', '.join(sorted(unlike)[:4])}")
        model.load_state_dict(weights, strict=False)  # its masks are no parameters
        model.to(next(iter(weights.values())).dtype)
    model.save_pretrained(target)
    for path in source.iterdir():  # the tokenizer, for calibration
        if "token" in path.name or path.name in ("vocab.json", "merges.txt"):
            shutil.copyfile(path, target / path.name)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
