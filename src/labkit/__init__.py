"""The library of labs, exercises and benchmarks: clients, workloads, evidence, pictures. It never imports labctl."""
