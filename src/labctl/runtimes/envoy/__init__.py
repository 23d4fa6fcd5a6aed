"""Envoy before Triton: the balancer of replicas, and under ``--expose`` the check of the stack's token."""
