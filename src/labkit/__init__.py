"""What labs, exercises and benchmarks import: clients, workloads, evidence, pictures. It never imports labctl."""
