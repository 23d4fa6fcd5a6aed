"""The little that several ``model.py`` files share. It runs inside Triton and imports nothing of labctl."""
