"""The most urgent first, and a level more urgent for each 32 requests that went before (priorities with ageing).

Claim: a request of priority p is overtaken at most (p - 1) * 32 times by less urgent ones.
"""


def place(request):
    return max(1, request.priority - request.overtaken // 32), request.came


def line(view):
    return [request.id for request in sorted(view.waiting, key=place)]


def victim(view):
    return max(view.running, key=place).id
