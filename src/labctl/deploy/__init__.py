"""Stacks for many machines, only rendered: files for ``kubectl apply -k`` and for ``docker stack deploy``.

``kubernetes/`` is a Kustomize tree and ``swarm.yaml`` a Swarm stack, both with placeholders. The values are those with
which ``labctl up --runtime compose`` would start the stack: the same image, command, mounts and environment.
"""
