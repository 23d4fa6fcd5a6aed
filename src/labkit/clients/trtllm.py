"""The name and tensors of a TensorRT-LLM engine's model, by upstream's names; the same in every release."""

MODEL = "tensorrt_llm"
PROMPT, PROMPT_LENGTH, OUTPUT_LENGTH = "input_ids", "input_lengths", "request_output_len"
ANSWER = "output_ids"
STREAMED = "streaming"  # the answer token by token, where the model is decoupled
