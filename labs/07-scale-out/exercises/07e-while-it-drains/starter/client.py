"""A client of a gateway whose servers are being drained: when does it ask again, and when does it stop?"""

from labkit.client.gateway import Cut, Gateway, Refused


def ask(url, request):
    """Show the user the answer; return how it ended: "answered", "refused", "late" or "left".

    request: a dict with prompt, tokens and deadline, in seconds on the gateway's clock.
    """
    gateway = Gateway(url)
    try:
        for token in gateway.post(request, key="1"):
            gateway.show(token)
        return "answered"
    except (Refused, Cut):
        return "refused"
