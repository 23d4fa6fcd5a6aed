"""Asks once, says in a file that it runs, and takes as long as it was told."""

import json
import sys
import time

from labctl.measure import context
from labctl.server_api import call

given = context.load(sys.argv[1])
code, body = call(given.endpoints["http"], "POST", "/v2/models/moody/generate", {"text_input": "hello"}, 30)
(given.out / "answer.json").write_text(json.dumps({"code": code, "text": json.loads(body)["text_output"]}))
time.sleep(given.settings["client_seconds"])
