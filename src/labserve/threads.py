"""On how many of the processor's threads a model computes."""

from pathlib import Path

#: Bytes of weights. Threads that share the work of fewer wait for each other longer than they compute.
SMALL = 16 * 2**20
MOST = 2


def threads_of(asked: int, folder: str) -> int:
    """As many as were asked for; for 0 one where the weights in this folder are few, else two."""
    if asked:
        return asked
    weights = sum(path.stat().st_size for kind in ("*.safetensors", "*.bin") for path in Path(folder).glob(kind))
    return 1 if weights < SMALL else MOST
