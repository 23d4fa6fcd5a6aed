"""How full the batch is, and how often a request is evicted: predicted from the rules of task.md, without a server."""


def blocks_for(tokens, block_size):
    """How many blocks so many tokens take."""
    return -(-tokens // block_size)


def predict(blocks, block_size, lengths, policy):
    """The mean batch (requests in a step) and the number of evictions.

    blocks, block_size: the KV cache. lengths: (prompt, output) tokens of each request, in order of arrival.
    policy: "guaranteed_no_evict" or "max_utilization".
    """

    def used():
        return sum(blocks_for(prompt + output, block_size) for prompt, output, _ in running)

    waiting = [[prompt, output, 0] for prompt, output in lengths]  # and how many tokens it has generated
    running, batches, evictions = [], [], 0
    while waiting or running:
        while waiting and used() + blocks_for(waiting[0][0] + waiting[0][1], block_size) <= blocks:
            running.append(waiting.pop(0))
        batches.append(len(running))
        for request in running:
            request[2] += 1
        running = [request for request in running if request[2] < request[1]]
    return sum(batches) / len(batches), evictions
