"""The library of labs, exercises and benchmarks (docs/develop/writing-a-lab.md). It never imports labctl."""
