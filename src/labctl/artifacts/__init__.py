"""Artifacts: model weights, and the engines compiled from them, each made once and kept in the cache.

``store`` keeps them: one key rule, one lock, one check, one list, one prune. ``weights`` and ``engines`` are its two
kinds. ``hub`` and ``random_weights`` make weights; ``openvino``, ``gpt2_export`` and ``tensorrt_llm`` make engines.
"""
