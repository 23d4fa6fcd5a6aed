"""Every KV block is counted twice.

Like a wrong answer of exercise 06c, which counts blocks that are shared.
"""

from labsched import scheduler

LEAST = 10
BLOCK = 32  # tokens


class Scheduler(scheduler.Scheduler):
    def __init__(self, *all):
        super().__init__(*all)
        claim = self.memory.claim
        self.memory.claim = lambda request: 2 * claim(request)


def shows(steps):
    """A request holds exactly twice the blocks that its tokens need: its context and the next one."""
    context, found = {}, []
    for step in steps:
        context.update(dict.fromkeys(step["joined"], 0))
        twice = []
        for name, letter, tokens, blocks in zip(step["ids"], step["phase"], step["tokens"], step["blocks"]):
            context[name] = context.get(name, 0) + tokens
            if letter == "d" and name in context:
                twice.append(blocks == 2 * -(-(context[name] + 1) // BLOCK))
        if len(twice) > 1 and all(twice):
            found.append(step)
    return found
