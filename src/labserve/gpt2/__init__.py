"""Lab 02: GPT-2 step by step, with keys and values of many sequences in slots."""
