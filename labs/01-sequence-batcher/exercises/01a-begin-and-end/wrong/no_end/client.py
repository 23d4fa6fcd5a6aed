"""A client of sequences: one after the other, each sends its whole text so far and appends the token that comes back.

Run by the check as: client.py HTTP GRPC PROMPTS STEPS, with PROMPTS as JSON; prints the texts as JSON.
"""

import json
import sys

import numpy as np
import tritonclient.http as triton


def ask(client, text, sequence_id, step, steps):
    tensor = triton.InferInput("INPUT_TOKENS", [1, 1], "BYTES")
    tensor.set_data_from_numpy(np.array([[text.encode()]], dtype=np.object_))
    result = client.infer(
        "ensemble_pipeline", [tensor], model_version="1", sequence_id=sequence_id, sequence_start=step == 0
    )
    return "".join(token.decode() for token in result.as_numpy("NEXT_TOKENS"))


def main():
    endpoint, prompts, steps = sys.argv[1], json.loads(sys.argv[3]), int(sys.argv[4])
    client = triton.InferenceServerClient(endpoint, network_timeout=5, connection_timeout=5)
    texts = []
    for number, prompt in enumerate(prompts):
        text = prompt
        for step in range(steps):
            text += ask(client, text, 1001 + number, step, steps)
        texts.append(text)
    print(json.dumps(texts))


main()
