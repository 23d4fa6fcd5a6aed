"""TensorRT-LLM 0.17.0: its image, the placeholders of its model templates, and what a stack's settings mean there.

Read from upstream's own templates, filler, backend sources and compatibility matrix at the tag. Upstream removed
engines, their builder and these templates in July 2026 (NVIDIA/TensorRT-LLM#15907, #15918); releases before have them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

RELEASE = "0.17.0"
IMAGE = "nvcr.io/nvidia/tritonserver:25.02-trtllm-python-py3"
PACKAGE = "0.17.0.post1"  # the version of TensorRT-LLM in the image
CUDA, DRIVER = "12.8", "570.86"  # the image's CUDA, and the driver that it is made for
# The newest compute capability that its CUDA builds for, and those up to it that it does not know.
NEWEST, UNKNOWN = "12.0", ("10.3", "12.1")
TEMPLATES = "/app/all_models/inflight_batcher_llm"  # in the image
PLAIN_IMAGE = "nvcr.io/nvidia/tritonserver:25.02-py3"  # of GPU stacks that need NVIDIA's backends, without TensorRT-LLM

POLICY_ALIASES = {"guaranteed_completion": "guaranteed_no_evict"}  # the published workshop's word for it
FALLBACK_POLICY = "guaranteed_no_evict"
STATIC = "V1"
# A stack's setting whose placeholder in the templates has another name; the others are called alike.
_NAMES = {"max_batch_size": "triton_max_batch_size", "gpt_model_type": "batching_strategy"}
# Placeholders with a value. The stack gives engine_dir and tokenizer_dir.
DEFAULTS: Mapping[str, bool | int | str] = {
    "triton_backend": "tensorrtllm",
    "triton_max_batch_size": 128,
    "decoupled_mode": False,
    "batching_strategy": "inflight_fused_batching",
    "batch_scheduler_policy": "guaranteed_no_evict",
    "max_queue_delay_microseconds": 0,
    "max_queue_size": 0,
    "max_beam_width": 1,
    "exclude_input_in_output": False,
    "enable_kv_cache_reuse": False,
    "enable_chunked_context": False,
    "normalize_log_probs": True,
    "preprocessing_instance_count": 1,
    "postprocessing_instance_count": 1,
    "bls_instance_count": 1,
    "accumulate_tokens": False,
    "stats_check_period_ms": 10,  # upstream's is 100: of the iterations between two reports only the last is seen
    "add_special_tokens": True,
    "skip_special_tokens": True,
    "tensorrt_llm_model_name": "tensorrt_llm",
    "logits_datatype": "TYPE_FP32",
    "encoder_input_features_data_type": "TYPE_FP16",
}
# Placeholders for which empty means "not set": the backend then takes its own default. The last is of the branch
# r25.02, from which the image may have its templates; not of the tag.
OPTIONAL = frozenset(
    """
    max_tokens_in_paged_kv_cache max_attention_window_size sink_token_length kv_cache_free_gpu_mem_fraction
    kv_cache_host_memory_bytes kv_cache_onboard_blocks enable_trt_overlap encoder_engine_dir
    cancellation_check_period_ms iter_stats_max_iterations request_stats_max_iterations
    gpu_device_ids gpu_weights_percent lora_cache_optimal_adapter_size lora_cache_max_adapter_size
    lora_cache_gpu_memory_fraction lora_cache_host_memory_bytes decoding_mode medusa_choices
    tensorrt_llm_draft_model_name cross_kv_cache_fraction participant_ids visual_model_path
    enable_context_fmha_fp32_acc multi_block_mode multimodal_encoders_name eagle_choices cuda_graph_mode
    cuda_graph_cache_size speculative_decoding_fast_logits max_num_images guided_decoding_backend
    """.split()
)


def placeholders_for(settings: Mapping[str, Any]) -> dict[str, Any]:
    """A value for every placeholder of the templates but the two folders, which the stack gives.

    The stack's settings are taken over where the templates have a place for them; "" is the backend's own default.
    """
    values: dict[str, Any] = {**dict.fromkeys(OPTIONAL, ""), **DEFAULTS}
    for setting, value in settings.items():
        if (name := _NAMES.get(setting, setting)) in values:
            values[name] = value
    values["batch_scheduler_policy"] = _policy(values["batch_scheduler_policy"])
    return values


def notices(settings: Mapping[str, Any]) -> list[str]:
    """What a person should know of settings that are not served as written, or will not be for long."""
    found = []
    if settings.get("gpt_model_type") == STATIC:
        found.append(f"TensorRT-LLM {RELEASE} still serves {STATIC}, but calls it deprecated")
    for name, item in effective(settings).items():
        found.append(f"{name} in effect: {item['effective']}, not {item['asked']} ({item['reason']})")
    return found


def effective(settings: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Settings that will be in force with another value than asked for: by setting, the value and the reason."""
    differing = {}
    asked = str(settings.get("batch_scheduler_policy", FALLBACK_POLICY))
    in_force, reason = _policy_in_force(asked, settings)
    if reason:
        differing["batch_scheduler_policy"] = {"asked": asked, "effective": in_force, "reason": reason}
    sequences, engine = settings.get("max_num_sequences"), settings.get("max_batch_size")
    if None not in (sequences, engine) and sequences != engine:
        reason = f"TensorRT-LLM {RELEASE} has no such parameter: the engine's own max_batch_size holds"
        differing["max_num_sequences"] = {"asked": str(sequences), "effective": str(engine), "reason": reason}
    return differing


def _policy_in_force(asked: str, settings: Mapping[str, Any]) -> tuple[str, str]:
    """The scheduler policy that is really in force, and why where it is not the one asked for ("" otherwise)."""
    accepted = _policy(asked)
    if accepted == FALLBACK_POLICY:
        reason = "" if accepted == asked else "the one word that the backend accepts for it"
        return accepted, reason
    if settings.get("gpt_model_type") == STATIC:
        return FALLBACK_POLICY, f"{STATIC} runs a batch to its end, so it takes only what fits to its end"
    return accepted, ""


def _policy(name: str) -> str:
    """The word that the backend accepts for a scheduler policy."""
    return POLICY_ALIASES.get(name, name)
