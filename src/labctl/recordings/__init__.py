"""Recordings: a picture that explains one, a prediction beside its measurement, and vLLM's own scheduler replayed."""
