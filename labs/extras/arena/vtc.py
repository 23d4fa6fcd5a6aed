"""A token counter for each tenant: the least served tenant goes first (VTC: Sheng et al., OSDI 2024).

A token of an answer counts twice one of a prompt, as the view's `served` does. It does not lift the counter of a tenant
that was away, as the paper does: the games are short.

Claim: two tenants that both wait are never further apart than a constant.
"""

import heapq


def line(view):
    queues = {}
    for request in sorted(view.waiting, key=lambda one: one.came, reverse=True):
        queues.setdefault(request.tenant, []).append(request)
    heap = [(view.served.get(tenant, 0), queue[-1].came, tenant) for tenant, queue in queues.items()]
    heapq.heapify(heap)
    found = []
    while heap:
        served, _, tenant = heapq.heappop(heap)
        request = queues[tenant].pop()
        found.append(request.id)
        if queues[tenant]:
            heapq.heappush(heap, (served + request.prompt, queues[tenant][-1].came, tenant))
    return found


def victim(view):
    return max(view.running, key=lambda one: (view.served.get(one.tenant, 0), one.came)).id
