"""Which request vLLM preempts. This file is next to tensorrt_llm's model.py; vLLM gets its class as `scheduler_cls`."""

from vllm.v1.core.sched import scheduler


class Scheduler(scheduler.Scheduler):
    def schedule(self, *args, **named):
        """Decide about the next step.

        `self.running` are the requests in the batch, and `self.waiting` those that wait. Each has `num_prompt_tokens`,
        `num_output_tokens`, `num_tokens` (both) and `num_computed_tokens` (0 again once it was preempted).
        """
        self.running.sort(key=lambda request: request.num_computed_tokens, reverse=True)  # the last one is preempted
        return super().schedule(*args, **named)
