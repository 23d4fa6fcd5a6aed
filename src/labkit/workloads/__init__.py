"""Workloads: what is asked, and when."""
