"""How many requests wait for a model, from a metrics page in Prometheus's text format."""

import re


def waiting(page, model):
    """`page` is what http://.../metrics answers; how many requests for `model` wait."""
    queue = value(page, "nv_inference_queue_duration_us", model, 0)
    compute = value(page, "nv_inference_compute_infer_duration_us", model, 1)
    return queue / compute


def value(page, metric, model, default):
    """A metric of a model; `default` where the page does not have it."""
    line = re.search(rf'^{metric}{{[^}}]*model="{model}"[^}}]*}} (\S+)$', page, re.MULTILINE)
    return float(line[1]) if line else default
