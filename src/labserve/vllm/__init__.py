"""vLLM behind ``tensorrt_llm`` and ``vllm_model``: its own scheduler, one step at a time, and what each step did."""
