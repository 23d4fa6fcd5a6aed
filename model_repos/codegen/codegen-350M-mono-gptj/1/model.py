"""CodeGen that answers inside `execute`: one Triton batch is one engine batch, run to its end.

Triton's dynamic batcher decides who shares a batch, by what waits when the instance is free and by
`max_queue_delay_microseconds`. Whatever it hands over is decoded together here: one step for eight texts costs less
than eight steps for one text each, and that is what batching buys.

labserve/codegen/running.py reads the requests and answers them, and labserve/driver.py computes and records each step.
"""

from labserve.codegen.running import Rows


class TritonPythonModel:
    def initialize(self, args):
        self.rows = Rows(args)

    def execute(self, requests):
        return self.rows.answer(requests, self.generate)

    def generate(self, rows):
        """Decode every row to its end. No row joins; a finished row leaves and is not computed any more."""
        for batch in self.fitting(rows):
            running = self.rows.begin(batch)
            while running:
                running = self.rows.step(running)

    def fitting(self, rows):
        """The rows in batches whose keys and values fit the memory: one batch, unless texts are very long."""
        batch, width = [], 0
        for row in rows:
            width = max(width, row.prompt + row.limit)
            if batch and width * (len(batch) + 1) > self.rows.most_tokens:
                yield batch
                batch, width = [], row.prompt + row.limit
            batch.append(row)
        if batch:
            yield batch

    def finalize(self):
        self.rows.close()
