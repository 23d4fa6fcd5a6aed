"""Lab 04: CodeGen, a batch of texts at a time."""
