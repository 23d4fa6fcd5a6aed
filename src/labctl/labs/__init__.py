"""A whole lab: its phases, one server after another, measurements, and the verdicts on them."""
