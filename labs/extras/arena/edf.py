"""The earliest deadline first: a request of priority p is to begin within p times 150 ms.

Claim: if any order meets all deadlines on one processor, this one does (Liu and Layland, 1973). Under overload it meets
few.
"""


def deadline(request):
    return request.came_ms + 150 * request.priority, request.came


def line(view):
    return [request.id for request in sorted(view.waiting, key=deadline)]


def victim(view):
    return max(view.running, key=deadline).id
