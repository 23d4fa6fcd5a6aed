"""Counts what the client got."""

import json
import sys
from pathlib import Path

out = Path(sys.argv[1])
answer = json.loads((out / "answer.json").read_text())
(out / "result.json").write_text(json.dumps({"metrics": {"echoed": int(answer["text"] == "hello")}}))
