"""Asks once, says in a file that it runs, and takes as long as it was told."""

import http.client
import json
import sys
import time

from labkit.client import context

given = context.load_context(sys.argv[1])
server = http.client.HTTPConnection(given.endpoints["http"], timeout=30)
server.request("POST", "/v2/models/moody/generate", json.dumps({"text_input": "hello"}))
answer = server.getresponse()
(given.out / "answer.json").write_text(json.dumps({"code": answer.status, "text": json.load(answer)["text_output"]}))
time.sleep(given.settings["client_seconds"])
