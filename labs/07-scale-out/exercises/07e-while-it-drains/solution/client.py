"""A client of a gateway whose servers are being drained: when does it ask again, and when does it stop?"""

import random
import uuid

from labkit.client.gateway import Cut, Gateway, Refused

FIRST, CAP = 0.5, 8.0  # seconds


def ask(url, request):
    """Show the user the answer; return how it ended: "answered", "refused", "late" or "left".

    request: a dict with prompt, tokens and deadline, in seconds on the gateway's clock.
    """
    gateway, key = Gateway(url), uuid.uuid4().hex
    shown = tries = 0
    while True:
        try:
            answer = gateway.post(request, key, after=shown)
            for token in answer:
                shown += 1
                if not gateway.show(token):
                    answer.close()
                    return "left"
            return "answered"
        except Refused as refusal:
            if refusal.status != 503:
                return "refused"
            wait = refusal.retry_after
        except Cut:
            wait = None
        backoff = min(CAP, FIRST * 2**tries)
        wait = random.uniform(0.5, 1) * backoff if wait is None else wait + random.uniform(0, 1)
        tries += 1
        if gateway.now() + wait > request["deadline"]:
            return "late"
        gateway.sleep(wait)
