"""Stacks for many machines, only rendered: files for ``docker stack deploy`` and for ``kubectl apply -k``.

Both are derived from compose.yaml, so that one machine and many run the same image, command, mounts and environment.
"""
