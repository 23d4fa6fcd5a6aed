"""What vLLM computes in its next step: predicted from its state by the rules of task.md, without a server."""


def predict(state):
    """The next batch: for each request in it, by its id, the tokens that the step computes.

    state: "budget", "max_num_seqs", "block_size" and "free_blocks"; "running", in order of admission, and "waiting",
    in the order of the queue. Each request has an "id", its "num_tokens" and its "num_computed_tokens".
    """
    return {request["id"]: 1 for request in state["running"]}  # as if all of them decoded, and nothing changed
