"""What came of a run: records, step and slot logs, statistics, reports and pictures."""
