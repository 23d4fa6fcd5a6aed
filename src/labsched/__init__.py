"""The scheduler: requests, blocks, orders, the plan and its reasons; over these, what its steps are good for.

The modules of this folder decide. Over them stand `log` (what is logged), `vllm` (a recorder for vLLM, and the reader
of its recordings), `replay` (what is replayed and asked) and `explain` (why a server was slow); each imports downward.

It needs nothing but Python (and NumPy, where times are fitted or summed up): a server, a notebook, an exercise and
vLLM's own environment import the same. `Scheduler.step` has an example; `python -m labsched` answers about recordings.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labsched.counting import CountingEngine
    from labsched.kv_budget import KVBudget
    from labsched.policy import Policy
    from labsched.request import Request
    from labsched.scheduler import Scheduler
    from labsched.step import Step

__all__ = ["CountingEngine", "KVBudget", "Policy", "Request", "Scheduler", "Step"]
_HOMES = dict(zip(__all__, ("counting", "kv_budget", "policy", "request", "scheduler", "step"), strict=True))


def __getattr__(name: str) -> Any:
    """Import a name of the face when it is asked for: labctl, which takes one module of many, starts 45 ms sooner."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"labsched.{_HOMES[name]}"), name)
