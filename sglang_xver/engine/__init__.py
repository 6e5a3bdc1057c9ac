"""The SGLang adapter: the only package that imports ``sglang``."""
