"""The shortest prompt first, with patience: what is known of a request's length before it has run.

Claim: the shortest mean wait, if prompts were all of the work (SJF: Smith, 1956). Answers are not known.
"""

PATIENCE = 32


def place(request):
    return (0, request.came) if request.overtaken >= PATIENCE else (request.prompt + request.made, request.came)


def line(view):
    return [request.id for request in sorted(view.waiting, key=place)]
