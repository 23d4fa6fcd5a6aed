"""A recorder for the vLLM that people run, as one class for one flag of `vllm serve`.

    LABS_RECORD=/var/log/labs vllm serve MODEL --scheduler-cls labsched.vllm.RecordingScheduler

`labctl explain`, `predict`, `plan`, `watch` and `compare` read the folder. Nothing here imports vLLM before the class
is used, and nothing needs another package.
"""

import os
from typing import Any

from labsched.vllm.recorder import FOLDER, recording_class

__all__ = ["RecordingScheduler"]


class RecordingScheduler:
    """vLLM's own scheduler, which also writes what it decides into the folder of the environment's LABS_RECORD.

    It is an instance of a subclass of the class that vLLM would have taken: `AsyncScheduler`
    (vllm/v1/core/sched/async_scheduler.py) where vLLM schedules asynchronously, and else `Scheduler` (scheduler.py).
    """

    def __new__(cls, vllm_config: Any, *args: Any, **named: Any) -> Any:
        from vllm.v1.core.sched.scheduler import Scheduler as Kind

        if getattr(vllm_config.scheduler_config, "async_scheduling", False):  # older versions have no such module
            from vllm.v1.core.sched.async_scheduler import AsyncScheduler as Kind
        return recording_class(Kind, os.environ.get(FOLDER, ""))(vllm_config, *args, **named)
