"""Keys and values outside of the slots: what later prompts find of their beginning, and what another server takes over.

Blocks are found by a digest of all tokens up to their end (vLLM: `hash_block_tokens`, vllm/v1/core/kv_cache_utils.py;
a plain hash could be met on purpose, CVE-2025-25183). They are in host memory, like vLLM's offloaded ones
(vllm/v1/kv_offload). What is handed over goes through a file that both servers map (vLLM: a KV connector,
vllm/distributed/kv_transfer).
"""

import hashlib
import json
import re
import secrets
import time
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from labserve.gpt2.kvcache import KVCache
from labserve.params import BadInput

SIZE = 16  # tokens of a block
FETCHED_S = 60.0  # after this time, keys and values that were not fetched are removed
NAME = re.compile(r"[0-9a-f]{32}")


class KV(NamedTuple):
    """Keys and values of neighbouring tokens of one sequence: each [layers, heads, tokens, head_dim]."""

    keys: torch.Tensor
    values: torch.Tensor

    @property
    def nbytes(self) -> int:
        """Bytes of both."""
        return int(self.keys.nbytes + self.values.nbytes)


def take_from_slot(cache: KVCache, slot: int, tokens: slice) -> KV:
    """A copy of what a slot holds of these tokens."""
    return KV(cache.keys[:, slot, :, tokens].clone(), cache.values[:, slot, :, tokens].clone())


def put_in_slot(cache: KVCache, slot: int, start: int, kv: KV) -> None:
    """Into a slot, from the token `start` on."""
    end = start + kv.keys.shape[2]
    cache.keys[:, slot, :, start:end] = kv.keys
    cache.values[:, slot, :, start:end] = kv.values


class Kept:
    """At most `most` blocks of this server's prompts and answers; the one that was used longest ago goes first."""

    def __init__(self, cache: KVCache, most: int) -> None:
        self._cache, self._most = cache, most
        self._blocks: OrderedDict[bytes, KV] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def find(self, ids: Sequence[int]) -> int:
        """How many tokens at the beginning of `ids` are kept. Never all: the last one has to be computed."""
        tokens = 0
        for key in _keys(ids[:-1]):
            if key not in self._blocks:
                break
            tokens += SIZE
        return tokens

    def load(self, ids: Sequence[int], slot: int) -> int:
        """Put the first blocks of `ids` into a slot. Returns their bytes."""
        loaded = 0
        for place, key in enumerate(_keys(ids)):
            self._blocks.move_to_end(key)
            put_in_slot(self._cache, slot, place * SIZE, self._blocks[key])
            loaded += self._blocks[key].nbytes
        return loaded

    def keep(self, ids: Sequence[int], slot: int) -> None:
        """Copy the full blocks of `ids` from their slot; blocks that are kept already count as used now."""
        for place, key in enumerate(_keys(ids)):
            if key not in self._blocks:
                tokens = slice(place * SIZE, (place + 1) * SIZE)
                self._blocks[key] = take_from_slot(self._cache, slot, tokens)
            self._blocks.move_to_end(key)
        while len(self._blocks) > self._most:
            self._blocks.popitem(last=False)


def _keys(ids: Sequence[int]) -> Iterator[bytes]:
    """The digest of each full block of `ids`."""
    key = b""
    for start in range(0, len(ids) - SIZE + 1, SIZE):
        key = hashlib.sha256(key + array("q", ids[start : start + SIZE]).tobytes()).digest()
        yield key


class HandedOver(NamedTuple):
    """A sequence whose first token another server has made: its `ids`, and keys and values of all but the last."""

    ids: list[int]
    kv: KV


class Desk:
    """Where servers of one stack hand sequences over: a folder that all of them have."""

    def __init__(self, run_dir: str) -> None:
        self._folder = Path(run_dir) / "handed-over"
        self._folder.mkdir(mode=0o700, exist_ok=True)

    def hand_over(self, ids: Sequence[int], kv: KV) -> str:
        """Leave a sequence for another server. Returns the name by which it fetches it, once."""
        self._clear()
        name = secrets.token_hex(16)
        path, unfinished = self._folder / name, self._folder / f"{name}.unfinished"
        tensors = {part: tensor.contiguous() for part, tensor in kv._asdict().items()}
        save_file(tensors, unfinished, metadata={"ids": json.dumps(list(ids))})
        unfinished.replace(path)
        return name

    def fetch(self, name: str) -> HandedOver:
        """Take a sequence over. Raises BadInput if there is none of that name (any more)."""
        path = self._folder / name
        try:
            if not NAME.fullmatch(name):
                raise FileNotFoundError(name)
            with safe_open(path, framework="pt") as file:
                ids = json.loads(file.metadata()["ids"])
                kv = KV(file.get_tensor("keys"), file.get_tensor("values"))
            path.unlink()
        except FileNotFoundError:
            raise BadInput("handed_over", "nothing of that name is there: fetched already, or too late") from None
        return HandedOver(ids, kv)

    def _clear(self) -> None:
        """Remove keys and values that were not fetched in time: their client has gone."""
        for path in self._folder.iterdir():
            with suppress(FileNotFoundError):
                if time.time() - path.stat().st_mtime > FETCHED_S:
                    path.unlink()
