"""Sends all requests at once and notes with how many others each was answered."""

import sys

from labkit.client import context
from labkit.client.ask import UnaryClient, text_tensor

lab = context.load_context(sys.argv[1])
with UnaryClient(lab.endpoints["grpc"]) as client:
    items = [text_tensor("item", f"item {number}") for number in range(lab.settings["requests"])]
    records = [client.send_inputs("till", "", [item], output="together") for item in items]
    client.wait(*records, timeout=60)
batches = [int(record.text) for record in records]
data = {
    "largest_batch": max(batches),
    "executions": round(sum(1 / batch for batch in batches)),
    "seconds": max(record.end for record in records) - min(record.start for record in records),
}
print(f"{lab.phase}: {data['executions']} executions for {len(records)} requests, {data['seconds']:.2f} s")
lab.finish(data, records)
