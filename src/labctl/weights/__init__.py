"""Model weights: where they come from, where they are, and that they are whole.

One interface for four kinds of source::

    hub:<id>[@<revision>]   the model hub, at a pinned revision where one is given
    shipped:<name>          a tiny trained model of this project, in models/
    random:<shape>[@<dtype>]  a real architecture with seeded random weights, for speed work
    <folder>                a folder of yours in Hugging Face's layout
"""

from labctl.weights.hub import ask_access
from labctl.weights.source import Source, locate, parse
from labctl.weights.store import Weights, identity, list_cached, prune, pull, ready, vocab_size

__all__ = [
    "Source",
    "Weights",
    "ask_access",
    "identity",
    "list_cached",
    "locate",
    "parse",
    "prune",
    "pull",
    "ready",
    "vocab_size",
]
