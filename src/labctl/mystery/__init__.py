"""The sick server: a fault to be found from telemetry (docs/guide/mystery.md)."""
