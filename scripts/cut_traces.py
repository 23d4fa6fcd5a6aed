"""Make small cuts of public traces of LLM services, or make them again: ``labs/shared/traces/NAME.csv`` or ``.jsonl``.

    python scripts/cut_traces.py                        # the shipped ones
    python scripts/cut_traces.py burstgpt --to FOLDER   # another one, for labctl bench --trace FOLDER/burstgpt.csv
    python scripts/cut_traces.py --from FOLDER          # out of files that you have, by the name that each has upstream

A cut is the beginning of the trace, byte for byte, up to ``MOST`` requests or ``LARGEST`` bytes. It is not scaled:
``labctl bench --trace`` and ``labkit.predict.traces.scale_lengths`` do that, by one rule.
"""

from __future__ import annotations

import argparse
import sys
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from labkit.disk import atomic_write
from labkit.errors import LabError
from labkit.predict import traces

FOLDER = Path(__file__).resolve().parents[1] / "labs" / "shared" / "traces"
MOST, LARGEST = 2000, 100_000
TIMEOUT_S = 60.0
RAW = "https://raw.githubusercontent.com"
MEDIA = "https://media.githubusercontent.com/media"  # of files that a repository keeps in Git LFS


@dataclass(frozen=True)
class Source:
    """A public trace; ``shipped``: its licence lets us, and the repository has its cut."""

    url: str
    licence: str
    shipped: bool = False

    @property
    def file(self) -> str:
        return self.url.rpartition("/")[2]


AZURE, MOONCAKE = f"{RAW}/Azure/AzurePublicDataset/master/data", "kvcache-ai/Mooncake/main/FAST25-release/traces"
BAILIAN = f"{MEDIA}/alibaba-edu/qwen-bailian-usagetraces-anon/main"
SOURCES = {
    "azure-conversation": Source(f"{AZURE}/AzureLLMInferenceTrace_conv.csv", "CC-BY-4.0", shipped=True),
    "azure-code": Source(f"{AZURE}/AzureLLMInferenceTrace_code.csv", "CC-BY-4.0", shipped=True),
    "mooncake-conversation": Source(f"{RAW}/{MOONCAKE}/conversation_trace.jsonl", "Apache-2.0", shipped=True),
    "mooncake-toolagent": Source(f"{RAW}/{MOONCAKE}/toolagent_trace.jsonl", "Apache-2.0"),
    "burstgpt": Source("https://github.com/HPMLL/BurstGPT/releases/download/v1.2/BurstGPT_1.csv", "CC-BY-4.0"),
    "bailian-chat": Source(f"{BAILIAN}/qwen_traceA_blksz_16.jsonl", "Apache-2.0"),
    "bailian-coder": Source(f"{BAILIAN}/qwen_coder_blksz_16.jsonl", "Apache-2.0"),
}


def cut(lines: Iterable[bytes]) -> bytes:
    """The first whole lines, up to ``MOST`` requests (a header is none) or ``LARGEST`` bytes."""
    found: list[bytes] = []
    size, most = 0, MOST
    for line in lines:
        size += len(line)
        if not found and not line.lstrip().startswith(b"{"):
            most += 1
        if size > LARGEST or len(found) == most:
            break
        found.append(line)
    return b"".join(found)


@contextmanager
def opened(source: Source, folder: Path | None) -> Iterator[Iterable[bytes]]:
    """The lines of the whole trace. Raises OSError."""
    if folder:
        with (folder / source.file).open("rb") as file:
            yield file
    else:
        with urllib.request.urlopen(source.url, timeout=TIMEOUT_S) as answer:
            yield answer


def make(name: str, folder: Path | None, to: Path) -> Path:
    """Write a cut, once it has been read as a trace. Raises LabError: it cannot be had, or is none."""
    source = SOURCES[name]
    path = to / f"{name}{Path(source.file).suffix}"
    try:
        with opened(source, folder) as lines:
            text = cut(lines)
    except OSError as error:
        raise LabError(
            f"{name} cannot be had", f"{folder or source.url}: {error}", "--from FOLDER", code="trace-not-had"
        ) from error
    fresh = path.with_name(f"{path.name}.part")
    atomic_write(fresh, text.decode())
    try:
        count = len(traces.read_trace(fresh))
    except LabError:
        fresh.unlink()
        raise
    fresh.replace(path)
    print(f"{path}: {count:,} requests, {len(text):,} bytes ({source.licence})")
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    shipped = [name for name, source in SOURCES.items() if source.shipped]
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(SOURCES)}")
    parser.add_argument(
        "--from", dest="folder", type=Path, help="a folder with the original files; default: their URLs"
    )
    parser.add_argument("--to", type=Path, default=FOLDER, help="the folder of the cuts; default: labs/shared/traces/")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - SOURCES.keys():
        parser.error(f"there is no trace {', '.join(sorted(unknown))}")
    try:
        for name in arguments.names or shipped:
            make(name, arguments.folder, arguments.to)
    except LabError as error:
        sys.exit(f"cut_traces: {error}")


if __name__ == "__main__":
    main()
