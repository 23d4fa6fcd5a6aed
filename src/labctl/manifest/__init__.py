"""Manifests: what ``lab.yaml`` may say, its settings and overlays, and the catalogue of all labs."""
