"""The little that several ``model.py`` files share. It runs inside Triton and imports nothing of labctl."""

from labserve import serving  # before anything large is imported

serving.prepare_stub()
