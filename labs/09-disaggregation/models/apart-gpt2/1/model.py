"""GPT-2 in a loop of its own, as lab 02 has it. A prompt is computed whole, in one step with everybody's next token.

Three things are new. A request may be handed over to another server after its prompt (`hand_over`), and a server may
take one over (`handed_over`) with its keys and values, so that nothing is computed twice. And what was computed stays
in blocks outside of the slots, where the next prompt that begins in the same way finds it.

labserve/gpt2/apart.py has the slots, labserve/gpt2/kept.py the blocks and what is handed over.
"""

from labserve.gpt2.apart import Texts


class TritonPythonModel:
    def initialize(self, args):
        self.texts = Texts(args, self.step)

    def execute(self, requests):
        self.texts.receive(requests)

    def step(self):
        """A token for each running request. Prompts of those that join are computed in the same step, and all wait."""
        self.texts.drop_cancelled()
        self.texts.begin()
        if not self.texts.running:
            return
        with self.texts.step() as running:
            for text, piece in zip(running, self.texts.compute(running), strict=True):
                self.texts.send(text, piece)

    def finalize(self):
        self.texts.close()
