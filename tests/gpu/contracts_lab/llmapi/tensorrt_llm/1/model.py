"""The LLM API's model around a stub of ``tensorrt_llm.LLM``: it sets its own decoupled flag, and has no batch."""

import numpy as np
import triton_python_backend_utils as pb_utils


class LLM:
    """Adds the letter b, one at a time."""

    def generate(self, prompt, tokens):
        for count in range(1, tokens + 1):
            yield "b" * count


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        said = config.as_dict()["parameters"]["decoupled"]["string_value"]
        config.set_max_batch_size(0)
        config.set_model_transaction_policy({"decoupled": said == "true"})
        return config

    def initialize(self, args):
        self.llm = LLM()

    def execute(self, requests):
        for request in requests:
            self.answer(request)

    def answer(self, request):
        sender, final = request.get_response_sender(), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        text = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy()
        limit = pb_utils.get_input_tensor_by_name(request, "sampling_param_max_tokens")
        streaming = pb_utils.get_input_tensor_by_name(request, "streaming")
        if text.ndim != 1 or limit is None or limit.as_numpy().size != 1:
            error = pb_utils.TritonError("one prompt, and one number of tokens")
            sender.send(pb_utils.InferenceResponse(error=error), flags=final)
            return
        answers = list(self.llm.generate(text[0].decode(), int(limit.as_numpy().item())))
        if streaming is None or not streaming.as_numpy().item():
            answers = answers[-1:]
        for place, answer in enumerate(answers, 1):
            made = pb_utils.Tensor("text_output", np.array([answer.encode()], dtype=object))
            sender.send(pb_utils.InferenceResponse([made]), flags=final if place == len(answers) else 0)
