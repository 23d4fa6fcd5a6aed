"""How often is each of the three models executed, and with how many rows each time?"""


def predict(prompts, max_tokens, limit):
    """The rows of every execution, in order, for each model.

    All prompts are there before anything is computed, and are taken in their order; answer i is max_tokens[i] tokens
    long. `limit` is the most rows of one execution, for both models that batch. An execution of tensorrt_llm is a step
    of the engine: one token for each of its rows.
    """
    one_by_one = [len(prompts)]
    batches = [len(prompts)]
    steps = [len(prompts)]
    return {"llama-python": one_by_one, "llama-python-batched": batches, "tensorrt_llm": steps}
