"""What a scheduler for LLM serving decides, recorded."""
