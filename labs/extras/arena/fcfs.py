"""First come, first served; the last one admitted is preempted. What the shipped scheduler does.

Claim: no request is overtaken. A long request holds up everything behind it.
"""
