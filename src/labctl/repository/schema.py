"""Every ``config.pbtxt`` against Triton's own schema: the protobuf ``ModelConfig`` that tritonclient carries."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from labctl.repository.template import Problem, Use

_POSITION = re.compile(r"^(\d+):(\d+) : (.*)$", re.DOTALL)


def parse(file: str, text: str, uses: Sequence[Use] = ()) -> tuple[Any, list[Problem]]:
    """The parsed ``ModelConfig`` (None if it is not one) and what is wrong with it.

    Args:
        text: a filled template.
        uses: its placeholders: an error on the line of one is told with its key.
    """
    from google.protobuf import text_format
    from tritonclient.grpc import model_config_pb2

    config = model_config_pb2.ModelConfig()
    try:
        text_format.Parse(text, config)
    except text_format.ParseError as error:
        match = _POSITION.match(str(error))
        line, message = (int(match[1]), match[3]) if match else (error.GetLine() or 0, str(error))
        keys = [use.key for use in uses if use.line == line and not use.comment]
        return None, [Problem(file, line, ", ".join(dict.fromkeys(keys)), " ".join(message.split()))]
    return config, []
