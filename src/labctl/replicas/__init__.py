"""Replicas that come and go while a stack serves."""
