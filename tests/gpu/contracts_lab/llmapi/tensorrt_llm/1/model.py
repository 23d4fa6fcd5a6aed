"""The LLM API's model around a stub of ``tensorrt_llm.LLM``; it refuses and answers as upstream's does.

Upstream's: tensorrtllm_backend v0.19.0, all_models/llmapi/tensorrt_llm/1, model.py and helpers.py. TensorRT-LLM's own
triton_backend/all_models/llmapi of 1.2 has the same defaults.
"""

import numpy as np
import triton_python_backend_utils as pb_utils

EOS_AT = 5  # a prompt that begins with "stop" ends by EOS after so many tokens


def scalar(request, name, default):
    """helpers.py, get_input_scalar_by_name."""
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    if tensor is None:
        return default
    if tensor.as_numpy().size != 1:
        raise ValueError(f"Expected a scalar tensor for tensor {name}")
    return tensor.as_numpy().item()


class LLM:
    """Adds the letter b, one at a time; yields the text so far and why it ended."""

    def generate(self, prompt, tokens):
        length = min(tokens, EOS_AT) if prompt.startswith("stop") else tokens
        for count in range(1, length + 1):
            yield "b" * count, ("length" if length == tokens else "stop") if count == length else None


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        said = config.as_dict()["parameters"]["decoupled"]["string_value"]
        config.set_max_batch_size(0)
        config.set_model_transaction_policy({"decoupled": said == "true"})
        return config

    def initialize(self, args):
        self.llm = LLM()
        self.decoupled = '"decoupled":true' in args["model_config"].replace(" ", "")

    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            try:
                for response, flags in self.responses(request):
                    sender.send(response, flags=flags)
            except ValueError as error:
                said = pb_utils.TritonError(f"Error generating request: {error}")
                sender.send(pb_utils.InferenceResponse(error=said), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def responses(self, request):
        text = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy()
        if text.ndim != 1:
            raise ValueError("The current implementation only supports text_input being a 1D tensor.")
        prompt, limit = text[0].decode(), scalar(request, "sampling_param_max_tokens", 32)
        streaming = scalar(request, "streaming", False)
        if streaming and not self.decoupled:
            raise ValueError("Streaming is only supported in decoupled mode.")
        # The answer begins with the prompt unless that is asked otherwise: helpers.py, default_values.
        before = "" if scalar(request, "sampling_param_exclude_input_from_output", False) else prompt
        answers = list(self.llm.generate(prompt, limit))
        for place, (answer, reason) in enumerate(answers if streaming else answers[-1:], 1):
            tensors = [pb_utils.Tensor("text_output", np.array([(before + answer).encode()], dtype=object))]
            if scalar(request, "return_finish_reason", False):
                tensors.append(pb_utils.Tensor("finish_reason", np.array([str(reason)], dtype=object)))
            last = place == len(answers) or not streaming
            yield (pb_utils.InferenceResponse(tensors), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if last else 0)
