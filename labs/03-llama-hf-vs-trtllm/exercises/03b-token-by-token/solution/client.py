"""Asks a model that answers token by token, one prompt after the other.

Run by the check as: client.py HTTP GRPC PROMPTS TOKENS, with PROMPTS as JSON; prints for each prompt the list of its
responses, each as [text, whether it was the last], as JSON.
"""

import json
import queue
import sys

import numpy as np
import tritonclient.grpc as triton

NO_PROXY = [("grpc.enable_http_proxy", 0)]  # the server is on this machine, whatever http_proxy says


def ask(client, prompt, tokens):
    """The responses to one prompt, in order: [text, whether it was the last]."""
    arrived = queue.Queue()
    client.start_stream(callback=lambda result, error: arrived.put((result, error)))
    client.async_stream_infer("ensemble", inputs(prompt, tokens))
    responses, last = [], False
    while not last:
        result, error = arrived.get()
        if error:
            raise error
        last = is_last(result)
        responses.append([text_of(result), last])
    client.stop_stream()
    return responses


def inputs(prompt, tokens):
    values = {
        "text_input": np.array([[prompt.encode()]], dtype=np.object_),
        "max_tokens": np.array([[tokens]], dtype=np.uint32),
        "bad_words": np.array([[b""]], dtype=np.object_),
        "stop_words": np.array([[b""]], dtype=np.object_),
        "stream": np.array([[True]]),
    }
    made = []
    for name, array in values.items():
        made.append(triton.InferInput(name, array.shape, triton_type(array)))
        made[-1].set_data_from_numpy(array)
    return made


def triton_type(array):
    return {"O": "BYTES", "u": "UINT32", "b": "BOOL"}[array.dtype.kind]


def text_of(result):
    return result.as_numpy("text_output").item().decode(errors="replace")


def is_last(result):
    """Whether Triton says of a response that none follows."""
    return result.get_response().parameters["triton_final_response"].bool_param


def main():
    endpoint, prompts, tokens = sys.argv[2], json.loads(sys.argv[3]), int(sys.argv[4])
    with triton.InferenceServerClient(endpoint, channel_args=NO_PROXY) as client:
        print(json.dumps([ask(client, prompt, tokens) for prompt in prompts]))


main()
