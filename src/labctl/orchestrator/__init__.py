"""up, run, bench, down: the steps from a manifest to a verdict, in order."""
