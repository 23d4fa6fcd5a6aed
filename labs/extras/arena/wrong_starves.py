"""Wrong on purpose: the shortest limit and prompt first, without patience. A long request may wait for ever."""


def line(view):
    return [request.id for request in sorted(view.waiting, key=lambda one: (one.prompt, one.came))]
