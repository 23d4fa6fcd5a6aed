"""A model's observability: step log, clock, gauges, traces, watchdog. It computes nothing and decides nothing."""
