"""The issue museum: faults of Triton that happen on this machine (docs/guide/museum.md)."""
