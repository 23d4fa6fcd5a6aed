"""Model templates in the style of each TensorRT-LLM release, made from the table of releases."""

from __future__ import annotations

from pathlib import Path

from labctl.trtllm.releases import release

RELEASES = ["0.5.0", "0.8.0", "0.11.0", "0.14.0", "0.17.0", "0.19.0"]
IN_NUMBERS = {
    "triton_max_batch_size": "max_batch_size: ${triton_max_batch_size}",
    "decoupled_mode": "model_transaction_policy { decoupled: ${decoupled_mode} }",
    "max_queue_delay_microseconds": "dynamic_batching {\n"
    "  max_queue_delay_microseconds: ${max_queue_delay_microseconds}\n}",
    "logits_datatype": 'output [ { name: "logits" data_type: ${logits_datatype} dims: [ -1 ] } ]',
    "triton_backend": 'backend: "${triton_backend}"',
}


def templates(folder: Path, name: str) -> Path:
    """Templates of the release's style, made from its table: its placeholders bare, quoted, repeated, in comments."""
    it = release(name)
    keys = [*it.required, *it.defaults, *it.optional]
    lines = ['name: "tensorrt_llm"', "# enable with ${never_given_by_anyone}"]
    lines += [IN_NUMBERS[key] for key in keys if key in IN_NUMBERS]
    if "triton_backend" not in keys:
        lines.append('backend: "tensorrtllm"')
    for key in keys:
        if key not in IN_NUMBERS or key == "decoupled_mode":
            lines.append(f'parameters: {{ key: "{key}" value: {{ string_value: "${{{key}}}" }} }}')
    if not it.batching_parameter:
        lines.append('parameters { key: "gpt_model_type" value: { string_value: "inflight_fused_batching" } }')
    model = folder / "all_models" / "inflight_batcher_llm" / "tensorrt_llm"
    model.mkdir(parents=True)
    (model / "config.pbtxt").write_text("\n".join(lines) + "\n")
    return folder
