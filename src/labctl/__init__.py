"""labctl: the orchestrator of Triton Serving Labs."""
