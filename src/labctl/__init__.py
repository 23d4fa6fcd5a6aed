"""labctl: the command line of Triton Serving Labs."""
