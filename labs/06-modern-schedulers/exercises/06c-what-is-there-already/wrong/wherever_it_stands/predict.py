"""How much of each prompt is in the cache already: predicted from the rules of task.md, without a server."""


def reused(prompts, block_size):
    """For each prompt, in order of arrival, how many of its tokens need not be computed. prompts: lists of ids."""
    known, found = set(), []
    for prompt in prompts:
        blocks = [tuple(prompt[at : at + block_size]) for at in range(0, len(prompt) - block_size + 1, block_size)]
        found.append(sum(block_size for block in blocks if block in known))
        known.update(blocks)
    return found
