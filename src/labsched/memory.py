"""How much of the KV cache is occupied or promised, and what one more request would add to it."""

import itertools
from collections import Counter
from collections.abc import Sequence

from labsched.blocks import Block, Blocks
from labsched.features import Features
from labsched.kv_budget import KVBudget
from labsched.plan import Shares, copy_of, in_engine_order
from labsched.policy import Policy
from labsched.request import Request


class Memory:
    """The account of one engine's KV cache (vLLM: `KVCacheManager`, vllm/v1/core/kv_cache_manager.py).

    The engine has a spare block for each of `batch` beyond `kv`. With `kv_cache_reuse` a block that several requests
    hold counts once. A block that no request holds counts as free, whatever is in it, because it may be overwritten at
    any step. So a request that finds its beginning in such blocks needs as much memory as one that does not. Only the
    blocks that other requests hold cost it nothing.
    """

    def __init__(self, kv: KVBudget, policy: Policy, batch: int, features: Features) -> None:
        self.kv = kv
        self.policy = policy
        self.blocks = Blocks(kv.blocks + batch, kv.block_size) if features.kv_cache_reuse else None
        if self.blocks is not None:
            self.blocks.warm_up()
        self._next = 1 + features.num_assistant_tokens  # tokens of its next step
        self._joins = itertools.count(1)
        self.leaving: list[Request] = []  # dropped, and in memory until the engine has computed one more step
        self._joining: dict[Request, tuple[int, int]] = {}  # in a copy only: blocks they add, tokens they find
        self._beside: set[Block] = set()  # in a copy only: the blocks that these will hold
        self._ending: list[Request] = []  # in a copy only

    def copy(self) -> "Memory":
        """A copy of the account for a plan: requests that join or end there change nothing here."""
        copy = copy_of(self)
        copy._joining, copy._beside, copy._ending = {}, set(), []
        return copy

    def claim(self, request: Request) -> int:
        """The blocks that a running request counts for by itself: all it can ever need, or what its next step needs."""
        whole = len(request.prompt) + request.limit
        grows = self.policy is Policy.MAX_UTILIZATION and request.resumable
        if grows:
            return self.kv.needed(min(request.tokens + self._next, whole))
        return self.kv.needed(whole)

    def used(self, running: Sequence[Request]) -> int:
        """Blocks that are occupied or promised, also by the requests in `leaving`."""
        if self.blocks is None:
            return sum(self.kv.needed(request.tokens) for request in self.leaving) + sum(map(self.claim, running))
        freed = Counter(block for request in self._ending for block in self.blocks.of(request)[0])
        total = self.blocks.held - sum(count == block.holders for block, count in freed.items())
        writers = Counter[Block]()
        for request in self.leaving:  # a prompt that is given up may have to be computed to its end first
            total += max(0, self.kv.needed(request.tokens) - len(self.blocks.of(request)[0]))
        for request in running:
            if request in self._joining:
                added, _ = self._joining[request]
                total += added
                continue
            blocks, shared = self.blocks.of(request)
            total += max(0, self.claim(request) - len(blocks))
            if shared and shared.holders - freed[shared] > 1:
                writers[shared] += 1
        for block, count in writers.items():
            # A request that writes into a shared block needs a copy; if all its holders write, one of them does not.
            all_write = count == block.holders - freed[block]
            total += count - all_write
        return total

    def need(self, request: Request) -> int:
        """The blocks that a waiting request would add."""
        return self._look_up(request)[0]

    def _look_up(self, request: Request) -> tuple[int, list[Block], int]:
        """How many blocks a waiting request would add, the cached blocks that it finds, and the tokens in these."""
        if self.blocks is None:
            return self.claim(request), [], 0
        found, cached = self.blocks.find(request.prompt + request.output, self._beside)
        whole = found[: (request.tokens - 1) // self.kv.block_size]  # the block that is written to must be its own
        shared = sum(block.holders > 0 or block in self._beside for block in whole)
        return self.claim(request) - shared, found, min(cached, request.tokens - 1)

    def fit(self, request: Request) -> bool:
        """Whether a waiting request may use the blocks of its beginning as they are now."""
        return self.blocks is None or not self.blocks.unfit(request.prompt + request.output, self._beside)

    def left(self, request: Request) -> int:
        """Tokens that the engine has yet to compute for a request's next one."""
        if request in self._joining:
            _, cached = self._joining[request]
            return request.tokens - cached
        return request.left

    def plan_to_join(self, request: Request) -> None:
        """In a copy: count a request that waits as one that has joined."""
        need, found, cached = self._look_up(request)
        self._joining[request] = need, cached
        self._beside.update(found)

    def plan_to_end(self, request: Request) -> None:
        """In a copy: count the memory of a request as free."""
        self._ending.append(request)

    def join(self, request: Request) -> None:
        """A request joins, with what is there of its tokens."""
        request.prefill, request.joined = request.tokens, next(self._joins)
        if self.blocks is not None:
            request.cached = request.found = self.blocks.begin(request, request.prompt + request.output)

    def advance(self, batch: Sequence[Request], shares: Shares) -> None:
        """Account for the tokens that a step computes: all of them will be in the cache after it."""
        decoding = {request: 1 for request, letter in zip(batch, shares.phase, strict=True) if letter == "d"}
        tokens = dict(shares.dropped) | dict(zip(batch, shares.tokens, strict=True)) | decoding
        for request in (*decoding, *in_engine_order(tokens.keys() - decoding)):
            if tokens[request]:
                request.cached += tokens[request]
                if self.blocks is not None:
                    self.blocks.grow(request, request.prompt + request.output, request.cached)

    def end(self, request: Request) -> None:
        """The memory of a request is free."""
        request.cached = request.prefill = 0
        request.joined = None
        if self.blocks is not None:
            self.blocks.end(request)

    def end_dropped(self, requests: Sequence[Request]) -> None:
        """The memory of dropped requests is free."""
        for request in requests:
            self.leaving.remove(request)
            self.end(request)
