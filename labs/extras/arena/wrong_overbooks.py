"""Wrong on purpose: it says that memory will be free, by a reserve below nothing."""


def reserve(view):
    return -len(view.running)
