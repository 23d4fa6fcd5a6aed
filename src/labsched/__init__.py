"""The scheduler: requests, blocks, orders, the plan and its reasons, the step log, and its replay in virtual time.

It needs nothing but Python (and NumPy, where figures are made and step times fitted), so that a server, a notebook and
an exercise import the same scheduler. Begin with ``labsched.scheduler``.
"""
