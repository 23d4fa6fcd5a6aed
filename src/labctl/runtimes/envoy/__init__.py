"""Envoy before Triton: it spreads requests over replicas."""
