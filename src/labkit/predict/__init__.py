"""Prediction from a recording: the real scheduler in virtual time, and a model of how long its steps take."""
