"""A room of learners on one machine: each has a code, a stack of their own, and a page to hand in files."""
