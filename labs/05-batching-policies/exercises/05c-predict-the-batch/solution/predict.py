"""The mean batch, and the number of preemptions: predicted from the rules of task.md, without a server."""


def blocks_for(tokens, block_size):
    """The number of blocks for a number of tokens."""
    return -(-tokens // block_size)


def predict(blocks, block_size, lengths, policy):
    """The mean batch (requests in a step) and the number of preemptions.

    blocks, block_size: the KV cache. lengths: (prompt, output) tokens of each request, in order of arrival.
    policy: "guaranteed_no_evict" or "max_utilization".
    """

    def claim(request):
        prompt, output, generated = request
        whole = prompt + output if policy == "guaranteed_no_evict" else prompt + generated + 1
        return blocks_for(whole, block_size)

    def used():
        return sum(claim(request) for request in running)

    waiting = [[prompt, output, 0] for prompt, output in lengths]  # and the tokens it has generated
    running, batches, preemptions = [], [], 0
    while waiting or running:
        preempted = 0
        while used() > blocks and len(running) > 1:
            waiting.insert(0, running.pop())
            preempted += 1
        preemptions += preempted
        while waiting and not preempted:
            reserve = len(running) if policy == "max_utilization" else 0
            if used() + claim(waiting[0]) + reserve > blocks:
                break
            running.append(waiting.pop(0))
        batches.append(len(running))
        for request in running:
            request[2] += 1
        running = [request for request in running if request[2] < request[1]]
    return sum(batches) / len(batches), preemptions
