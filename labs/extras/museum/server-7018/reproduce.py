"""Two clients ask at the same time for a model that is not loaded: how often is it initialized?"""

from concurrent.futures import ThreadPoolExecutor

from labkit.exhibit import CannotTell, ExhibitServer, Observation

LOAD = "/v2/repository/models/slow/load"


def reproduce(server: ExhibitServer) -> Observation:
    with ThreadPoolExecutor(2) as clients:
        loads = [clients.submit(server.call, "POST", LOAD, {})]
        if server.workaround:  # the second client waits for its turn, then asks for the state first
            loads[0].result()
        if not server.workaround or server.state("slow") != "READY":
            loads.append(clients.submit(server.call, "POST", LOAD, {}))
        answers = [load.result()[0] for load in loads]
    begun = len(server.logged("initialize begins"))
    if begun == 1 and not server.workaround and not server.logged("compiled: True"):
        raise CannotTell("Python wrote no __pycache__ beside the model, which is part of the fault")
    return Observation(begun > 1, f"2 clients, status of {len(answers)} loads {answers}: initialized {begun} times")
