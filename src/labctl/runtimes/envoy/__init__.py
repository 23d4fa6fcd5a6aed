"""Envoy before Triton: it balances replicas; under ``--expose`` it checks the token, before the OpenAI API too."""
