"""Text and tokens: reading prompts, choosing tokens, spelling them."""
