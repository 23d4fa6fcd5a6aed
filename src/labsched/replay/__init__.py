"""What is replayed, and what is asked of it: recordings, the player, the time of a step, and predictions.

`recording` reads what our scheduler or vLLM's has logged, `player` plays it in virtual time under other settings,
`vllm_scheduler` plays it by vLLM's own scheduler, and `answer` predicts and plans with either.
"""
