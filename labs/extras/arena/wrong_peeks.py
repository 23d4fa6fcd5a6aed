"""Wrong on purpose: it wants to know how long each answer will be, which no server knows."""


def line(view):
    return [request.id for request in sorted(view.waiting, key=lambda one: one.answer)]
