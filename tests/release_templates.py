"""Model templates in the style of each TensorRT-LLM release, made from the table of releases."""

from __future__ import annotations

from pathlib import Path

from labbuild.releases import release

RELEASES = ["0.5.0", "0.8.0", "0.11.0", "0.14.0", "0.17.0", "0.19.0"]
TENSOR = 'name: "{name}" data_type: TYPE_INT32 dims: [ -1 ]'
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


def tree(folder: Path, name: str) -> Path:
    """A release's four models in upstream's places, with placeholders of its own in each."""
    family = templates(folder, name) / "all_models" / "inflight_batcher_llm"
    ids = TENSOR.format(name="ids")
    for model in ("preprocessing", "postprocessing"):
        other = next(k for k in ("tokenizer_type", "add_special_tokens") if k in release(name).defaults)
        write(
            family / model,
            f'name: "{model}" backend: "python" input {{ {ids} }} output {{ {ids} }}\n'
            'parameters { key: "tokenizer_dir" value: { string_value: "${tokenizer_dir}" } }\n'
            f'parameters {{ key: "{other}" value: {{ string_value: "${{{other}}}" }} }}\n',
        )
    write(
        family / "ensemble",
        f'name: "ensemble" platform: "ensemble" input {{ {ids} }} output {{ {TENSOR.format(name="out")} }}\n'
        'ensemble_scheduling { step { model_name: "preprocessing" model_version: -1\n'
        '  input_map { key: "ids" value: "ids" } output_map { key: "ids" value: "out" } } }\n',
    )
    (family / "preprocessing" / "1").mkdir()
    (family / "preprocessing" / "1" / "model.py").write_text("# upstream's\n")
    write(folder / "all_models" / "gpt" / "tensorrt_llm", 'name: "tensorrt_llm" # of another family\n')
    return folder


def write(folder: Path, text: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.pbtxt").write_text(text)
