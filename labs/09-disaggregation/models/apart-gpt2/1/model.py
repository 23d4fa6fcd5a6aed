"""GPT-2 in a loop of its own, as in lab 02. A prompt is computed whole, in one step with the others' next tokens.

Three things are new. A request may be handed over to another server after its prompt (`hand_over`), and a server may
take one over (`handed_over`) with its keys and values, so that nothing is computed twice. Computed keys and values stay
in blocks outside the slots, where the next prompt with the same prefix finds them.

labserve/gpt2/apart.py computes a step, labserve/gpt2/kept.py has the blocks and what is handed over, and the loop is in
labserve/driver.py.
"""

from labserve.gpt2.apart import Texts


class TritonPythonModel:
    def initialize(self, args):
        self.driver = Texts(args).driver
        self.driver.start()

    def execute(self, requests):
        self.driver.put(requests)

    def finalize(self):
        self.driver.close()
