"""Whether a prompt is computed where it will be decoded. `request` is what the router knows:

prompt      tokens of its prompt
cached      how many of them the decoding server has, from the beginning
readers     requests that are being decoded there
token_ms    how much longer a step takes for each token of a prompt
limit_ms    how much longer than usual a reader may wait
"""


def stays(request):
    """True: it is computed at the decoding server. False: at the other one, and handed over."""
    return True
