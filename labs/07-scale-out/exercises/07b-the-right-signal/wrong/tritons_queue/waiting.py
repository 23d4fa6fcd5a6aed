"""How many requests wait for a model, from a metrics page in Prometheus's text format."""

import re


def waiting(page, model):
    """`page` is what http://.../metrics answers; how many requests for `model` wait."""
    return value(page, "nv_inference_pending_request_count", model, 0)


def value(page, metric, model, default):
    """A metric of a model; `default` where the page does not have it."""
    line = re.search(rf'^{metric}{{[^}}]*model="{model}"[^}}]*}} (\S+)$', page, re.MULTILINE)
    return float(line[1]) if line else default
