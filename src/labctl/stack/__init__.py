"""A stack: what is known of it, how it comes up and goes down, and what is changed while it runs."""
