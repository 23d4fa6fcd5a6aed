"""The little that several ``model.py`` files share. It runs inside Triton and imports nothing of labctl."""

import sys

# transformers imports scikit-learn wherever it is installed (the engines' exporter brings it), for a way of decoding
# that no lab uses: a fifth of the time that a model takes to start. None: "there is no such module".
sys.modules.setdefault("sklearn", None)  # type: ignore[arg-type]
