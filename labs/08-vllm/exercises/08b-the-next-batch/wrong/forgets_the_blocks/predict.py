"""What vLLM computes in its next step: predicted from its state by the rules of task.md, without a server."""


def predict(state):
    """The next batch: for each request in it, by its id, the tokens that the step computes.

    state: "budget", "max_num_seqs", "block_size" and "free_blocks"; "running", in order of admission, and "waiting",
    in the order of the queue. Each request has an "id", its "num_tokens" and its "num_computed_tokens".
    """
    budget, free, size = state["budget"], state["free_blocks"], state["block_size"]
    running, batch, preempted = list(state["running"]), {}, False

    def blocks(tokens):
        return -(-tokens // size)

    at = 0
    while at < len(running) and budget:
        request = running[at]
        held, computed = blocks(request["num_computed_tokens"]), request["num_computed_tokens"]
        tokens = min(request["num_tokens"] - computed, budget)
        need = blocks(computed + tokens) - held
        free, budget, batch[request["id"]] = free - need, budget - tokens, tokens
        at += 1
    for request in state["waiting"]:
        if preempted or not budget or len(running) == state["max_num_seqs"] or blocks(request["num_tokens"]) > free:
            break
        tokens = min(request["num_tokens"], budget)
        free, budget, batch[request["id"]] = free - blocks(tokens), budget - tokens, tokens
        running.append(request)
    return batch
