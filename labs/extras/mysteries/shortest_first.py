"""The request with the shortest prompt joins first.

The order shortest_first without its patience: long prompts wait as long as short ones come.
"""

from labsched import scheduler

LEAST = 5


class Scheduler(scheduler.Scheduler):
    def line(self):
        return sorted(self.waiting, key=lambda request: len(request.prompt))


def shows(steps):
    """Requests are overtaken, and none joins while one with a shorter prompt waits."""
    from labkit.predict.signs import overtakings

    prompt, begun, been = {}, set(), set()
    for step in steps:
        for name, letter, tokens, made in zip(step["ids"], step["phase"], step["tokens"], step["made"]):
            if letter == "p" and name not in begun:
                prompt[name] = prompt.get(name, 0) + tokens
            if made:
                begun.add(name)
    for step in steps:
        new = [prompt[name] for name in step["joined"] if name in begun - been]
        if new and any(prompt[name] < max(new) for name in step["waiting"] if name in begun - been):
            return []
        been |= {*step["ids"]}
    return [step for step, _, _ in overtakings(steps)]
