"""What a model shows of itself: step log, clock, gauges, traces, watchdog. It computes nothing and decides nothing."""
