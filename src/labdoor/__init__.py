"""The door: the OpenAI API in front of a stack's text models. A program of its own, which speaks gRPC to Triton."""
