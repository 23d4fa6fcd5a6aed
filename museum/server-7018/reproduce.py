"""Two clients ask at the same time for a model that is not loaded: how often is it initialized?"""

from concurrent.futures import ThreadPoolExecutor

from labkit.exhibit import Found, Server

LOAD = "/v2/repository/models/slow/load"


def reproduce(server: Server) -> Found:
    with ThreadPoolExecutor(2) as clients:
        first = clients.submit(server.call, "POST", LOAD, {})
        if server.workaround:  # one at a time, as under a lock
            first.result()
        second = clients.submit(server.call, "POST", LOAD, {})
        answers = [first.result()[0], second.result()[0]]
    begun = len(server.logged("initialize begins"))
    return Found(begun > 1, f"2 loads, status {answers}: initialized {begun} times")
