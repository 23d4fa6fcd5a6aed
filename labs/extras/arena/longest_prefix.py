"""The longest cached prefix first (LPM of SGLang's RadixAttention: Zheng et al., arXiv 2312.07104), with patience.

Claim: for requests that are all there, and a cache that holds the longest, it is the order of a depth-first search of
their prefixes, which finds the most tokens in the cache.
"""

PATIENCE = 32


def place(request):
    return (0, request.came) if request.overtaken >= PATIENCE else (1, -request.cached, request.came)


def line(view):
    return [request.id for request in sorted(view.waiting, key=place)]
