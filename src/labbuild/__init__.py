"""How weights are drawn and engines are made, and what each release of TensorRT-LLM takes for it."""
