"""Evidence: what the server says it did (counters, step log, slot log)."""
