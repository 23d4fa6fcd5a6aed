"""Pictures: a run as something to look at."""
