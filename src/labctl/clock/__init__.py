"""The clock of a stack's schedulers, and the texts in its step log."""
