"""A compressed body of 400 KB that unpacks to 400 MB."""

import gzip

from labkit.exhibit import ExhibitServer, Observation

SIZE = 400 * 2**20


def reproduce(server: ExhibitServer) -> Observation:
    body = gzip.compress(bytes(2**20 if server.workaround else SIZE))
    before = server.memory()
    status = server.call("POST", "/v2/models/work/infer", body, {"Content-Encoding": "gzip"})[0]
    kept = server.memory() - before
    return Observation(
        kept > SIZE / 2, f"{len(body):,} bytes, status {status}; the server keeps {kept / 2**20:.0f} MiB more"
    )
