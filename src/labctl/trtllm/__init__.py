"""TensorRT-LLM by release: images, templates, builders, and what each of them can do."""
