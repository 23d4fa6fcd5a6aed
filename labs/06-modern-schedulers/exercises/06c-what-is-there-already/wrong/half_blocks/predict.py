"""How much of each prompt is in the cache already: predicted from the rules of task.md, without a server."""


def reused(prompts, block_size):
    """For each prompt, in order of arrival, how many of its tokens need not be computed. prompts: lists of ids."""
    found = []
    for number, prompt in enumerate(prompts):
        there = 0
        for earlier in prompts[:number]:
            same = 0
            while same < min(len(prompt), len(earlier)) and prompt[same] == earlier[same]:
                same += 1
            there = max(there, same)
        found.append(there)
    return found
