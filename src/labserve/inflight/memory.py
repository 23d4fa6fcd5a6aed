"""What of the KV cache is occupied or promised, and what a newcomer would add to it."""

from collections import Counter
from collections.abc import Collection, Sequence

from labserve.inflight.blocks import Block, Blocks
from labserve.inflight.features import Features
from labserve.inflight.job import Job
from labserve.inflight.kv_budget import KVBudget
from labserve.inflight.policy import Policy


class Memory:
    """Keeps account for the jobs of one engine, which has a block for each of `batch` beyond `kv` (see the engines).

    With `kv_cache_reuse` a block that several hold counts once. One that nobody holds any more counts as free,
    whatever is in it: it is the first to be overwritten, and nobody is promised that it stays. So a newcomer that finds
    its beginning in such blocks needs as much memory as one that does not; only what others hold comes free.
    """

    def __init__(self, kv: KVBudget, policy: Policy, batch: int, features: Features) -> None:
        self.kv = kv
        self.policy = policy
        self.blocks = Blocks(kv.blocks + batch, kv.block_size) if features.kv_cache_reuse else None
        self._next = 1 + features.num_assistant_tokens  # tokens of its next step
        self.leaving: list[Job] = []  # dropped, and in memory until the engine has computed one more step

    def claim(self, job: Job) -> int:
        """The blocks that a running job counts for by itself: all it can ever need, or what its next step needs."""
        whole = len(job.prompt) + job.limit
        return self.kv.needed(
            whole if self.policy is Policy.GUARANTEED_NO_EVICT else min(job.tokens + self._next, whole)
        )

    def used(self, running: Sequence[Job]) -> int:
        """Blocks that are occupied or promised, those of `leaving` among them."""
        if self.blocks is None:
            return sum(self.kv.needed(job.tokens) for job in self.leaving) + sum(map(self.claim, running))
        total, writers = self.blocks.held, Counter[Block]()
        for job in self.leaving:  # a prompt that is given up may have to be computed to its end first
            total += max(0, self.kv.needed(job.tokens) - len(self.blocks.of(job)[0]))
        for job in running:
            blocks, shared = self.blocks.of(job)
            total += max(0, self.claim(job) - len(blocks))
            if shared:
                writers[shared] += 1
        # Who writes into a block that others hold too needs a copy; the last one that holds it does not.
        return total + sum(count - (count == block.holders) for block, count in writers.items())

    def need(self, job: Job, beside: Collection[Block] = ()) -> tuple[int, list[Block]]:
        """What a job that waits would add, and the blocks it would find; `beside`: blocks that others will hold."""
        if self.blocks is None:
            return self.claim(job), []
        found = self.blocks.find(job.prompt + job.output)[0]
        whole = found[: (job.tokens - 1) // self.kv.block_size]  # what is written to must be its own
        return self.claim(job) - sum(block.holders > 0 or block in beside for block in whole), found

    def fit(self, job: Job, beside: Collection[Block] = ()) -> bool:
        """Whether a job that waits may take what is there of its beginning as it is now."""
        return self.blocks is None or not self.blocks.unfit(job.prompt + job.output, beside)

    def join(self, job: Job) -> None:
        """A job joins, with what is there of its tokens."""
        if self.blocks is not None:
            job.cached = job.found = self.blocks.begin(job, job.prompt + job.output)

    def grow(self, job: Job) -> None:
        """All that is `cached` of a job will be in its blocks after the step."""
        if self.blocks is not None:
            self.blocks.grow(job, job.prompt + job.output, job.cached)

    def end(self, job: Job) -> None:
        """The memory of a job is free."""
        if self.blocks is not None:
            self.blocks.end(job)
