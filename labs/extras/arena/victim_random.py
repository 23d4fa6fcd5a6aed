"""Preempt any request (vLLM's RFC #54644): the reference for rules that think.

The draw is made from the step, so that a game has one outcome.
"""

import random


def victim(view):
    return random.Random(view.step).choice(sorted(one.id for one in view.running))
