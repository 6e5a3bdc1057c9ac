"""The demonstration: a live server keeps its warm cache over a mild update, evicts it otherwise."""
