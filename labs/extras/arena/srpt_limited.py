"""Shortest remaining time, and only the young are preempted (TRAIL: Shahout et al., arXiv 2410.01035).

What remains is taken from the limit, since an answer's length is not known. A request that has made a fifth of its
limit is not preempted for another's sake: its keys and values are too dear.

Claim: most of SRPT's gain, for a bounded loss of memory.
"""

PATIENCE, YOUNG = 32, 0.2


def remaining(request):
    return request.prompt - request.cached + request.limit - request.made, request.came


def place(request):
    return (0, request.came) if request.overtaken >= PATIENCE else remaining(request)


def line(view):
    return [request.id for request in sorted(view.waiting, key=place)]


def victim(view):
    young = [request for request in view.running if request.made < YOUNG * request.limit]
    return max(young or view.running, key=remaining).id
