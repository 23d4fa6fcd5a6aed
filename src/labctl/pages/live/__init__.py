"""The live view: a page on loopback that shows a stack's scheduler while it works, or a run that is over."""
