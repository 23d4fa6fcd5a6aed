"""Artifacts: model weights, and the engines compiled from them, two kinds in one store, each made once."""
