"""The mean batch, and the number of preemptions: predicted from the rules of task.md, without a server."""


def blocks_for(tokens, block_size):
    """The number of blocks for a number of tokens."""
    return -(-tokens // block_size)


def predict(blocks, block_size, lengths, policy):
    """The mean batch (requests in a step) and the number of preemptions.

    blocks, block_size: the KV cache. lengths: (prompt, output) tokens of each request, in order of arrival.
    policy: "guaranteed_no_evict" or "max_utilization".
    """
    waiting = [[prompt, output, 0] for prompt, output in lengths]  # and the tokens it has generated
    running, batches, preemptions = [], [], 0
    while waiting or running:
        running += waiting  # as if there were memory for all
        waiting = []
        batches.append(len(running))
        for request in running:
            request[2] += 1
        running = [request for request in running if request[2] < request[1]]
    return sum(batches) / len(batches), preemptions
