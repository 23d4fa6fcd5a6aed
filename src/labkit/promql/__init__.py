"""Prometheus' alerting rules on recorded samples: the part of PromQL that such rules need, and ``for``."""
