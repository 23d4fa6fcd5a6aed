"""Exercises: the learner writes a few lines, and the running server is the judge."""
