"""Envoy before Triton: the balancer of replicas, and under ``--expose`` the check of the token, also before the OpenAI API."""
