"""Lab 01: from token ids to logits."""
