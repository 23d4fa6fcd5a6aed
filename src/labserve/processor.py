"""A model's share of the processor: its number of threads, and the numbers in which they compute."""

import functools
import platform
from pathlib import Path

#: Bytes of weights. Threads that share the work of fewer wait for each other longer than they compute.
SMALL = 16 * 2**20
MOST = 2
CPUINFO = Path("/proc/cpuinfo")
#: Where /proc/cpuinfo lists what a processor has, and its words for bf16. An emulator may show the host's file: a line
#: of another architecture counts for nothing.
BF16 = {"x86_64": ("flags", {"avx512_bf16", "amx_bf16"}), "aarch64": ("Features", {"bf16"})}


def threads_of(asked: int, folder: str) -> int:
    """As many as were asked for; for 0 one where the weights in this folder are few, else two."""
    if asked:
        return asked
    files = [*Path(folder).glob("*.safetensors"), *Path(folder).glob("*.bin")]
    weights = sum(path.stat().st_size for path in files)
    return 1 if weights < SMALL else MOST


@functools.cache
def has_bf16() -> bool:
    """Whether this processor multiplies bf16 itself; one that imitates it is several times slower."""
    try:
        lines = CPUINFO.read_text(encoding="utf-8").splitlines()
    except OSError:
        return False
    if platform.machine() not in BF16:
        return False
    heading, names = BF16[platform.machine()]
    features = next((line.split() for line in lines if line.startswith(heading)), [])
    return not names.isdisjoint(features)
