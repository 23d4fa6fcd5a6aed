"""The users of lab 04's load. `labctl run codegen` starts them; so does Locust itself:

labctl up codegen
locust -f labs/04-codegen-load-test/locustfile.py --host http://127.0.0.1:8000 CodegenHttp
locust -f labs/04-codegen-load-test/locustfile.py --host 127.0.0.1:8001 CodegenGrpc
"""

import numpy as np

from labkit.client.locust_users import TritonGrpcUser, TritonHttpUser

PROMPTS = (
    "def hello_world():",
    "def add(a, b):",
    "# return the maximum of a list\ndef",
    "def is_prime(n):",
    "def count_vowels(text):",
)
# The published client sends these, whatever the vocabulary.
OPTIONS = {
    "runtime_top_k": ("UINT32", np.uint32(1)),
    "runtime_top_p": ("FP32", np.float32(0.0)),
    "beam_search_diversity_rate": ("FP32", np.float32(0.0)),
    "temperature": ("FP32", np.float32(1.0)),
    "len_penalty": ("FP32", np.float32(-1.0)),
    "repetition_penalty": ("FP32", np.float32(1.0)),
    "random_seed": ("UINT64", np.uint64(0)),
    "is_return_log_probs": ("BOOL", np.bool_(True)),
    "beam_width": ("UINT32", np.uint32(1)),
    "start_id": ("UINT32", np.uint32(220)),
    "end_id": ("UINT32", np.uint32(50256)),
}


def payload(prompt: str, tokens: int):
    """The inputs and outputs of one request, in the classes of either protocol."""

    def make(input_class, output_class):
        columns = {
            "INPUT_0": ("BYTES", prompt.encode()),
            "INPUT_1": ("UINT32", np.uint32(tokens)),
            "INPUT_2": ("BYTES", b""),
            "INPUT_3": ("BYTES", b""),
            **OPTIONS,
        }
        inputs = []
        for name, (datatype, value) in columns.items():
            array = np.array([[value]], dtype=np.object_) if datatype == "BYTES" else np.array([[value]])
            inputs.append(input_class(name, [1, 1], datatype))
            inputs[-1].set_data_from_numpy(array)
        return inputs, [output_class("OUTPUT_0")]

    return make


class CodegenHttp(TritonHttpUser):
    model = "ensemble"
    payloads = tuple(payload(prompt, 8) for prompt in PROMPTS)


class CodegenGrpc(TritonGrpcUser):
    model = "ensemble"
    payloads = tuple(payload(prompt, 8) for prompt in PROMPTS)
