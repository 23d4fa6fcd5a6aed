"""A client of sequences, all of them under way at once; their requests come in random order among each other.

Run by the check as: client.py HTTP GRPC LENGTHS SEED, with LENGTHS as JSON: how many requests each sequence has, by its
id. Prints each sequence's last answer as JSON.
"""

import json
import random
import sys

import numpy as np
import tritonclient.http as triton


def headers(sequence, step):
    """The headers of request `step` (from 0) of a sequence."""
    return {"x-sequence-id": str(sequence)}


def ask(client, sequence, step, steps):
    tensor = triton.InferInput("text_input", [1, 1], "BYTES")
    tensor.set_data_from_numpy(np.array([[b"hello"]], dtype=np.object_))
    result = client.infer(
        "remembers",
        [tensor],
        sequence_id=sequence,
        sequence_start=step == 0,
        sequence_end=step == steps - 1,
        headers=headers(sequence, step),
    )
    return result.as_numpy("text_output").reshape(-1)[0].decode()


def main():
    endpoint, lengths, rng = sys.argv[1], json.loads(sys.argv[3]), random.Random(int(sys.argv[4]))
    client = triton.InferenceServerClient(endpoint, network_timeout=10, connection_timeout=10)
    done, answers = dict.fromkeys(lengths, 0), {}
    while unfinished := [id for id in lengths if done[id] < lengths[id]]:
        id = rng.choice(unfinished)
        answers[id] = ask(client, int(id), done[id], lengths[id])
        done[id] += 1
    print(json.dumps(answers))


main()
