"""Clients: who speaks to a running server, and how."""
