"""Checks of a machine: what ``labctl doctor`` prints, and what keeps a GPU stack from coming up."""
