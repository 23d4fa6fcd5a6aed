"""GPT-2 in a loop of its own, as in lab 02. A prompt is computed whole, in one step with the others' next tokens.

Three things are new. A request may be handed over to another server after its prompt (`hand_over`), and a server may
take one over (`handed_over`) with its keys and values, so that nothing is computed twice. Computed keys and values stay
in blocks outside the slots, where the next prompt with the same prefix finds them.

labserve/gpt2/apart.py has the slots, labserve/gpt2/kept.py the blocks and what is handed over.
"""

from labserve.gpt2.apart import Texts


class TritonPythonModel:
    def initialize(self, args):
        self.texts = Texts(args, self.step)

    def execute(self, requests):
        self.texts.receive(requests)

    def step(self):
        """One token for each running request. Prompts that join are computed in the same step, and all wait for it."""
        self.texts.drop_cancelled()
        self.texts.begin()
        if not self.texts.running:
            return
        with self.texts.step() as running:
            for text, piece in zip(running, self.texts.compute(running), strict=True):
                self.texts.send(text, piece)

    def finalize(self):
        self.texts.close()
