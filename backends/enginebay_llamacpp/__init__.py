"""GGUF models, run by llama.cpp through the low-level bindings of llama-cpp-python.

Only `options` may be imported without llama-cpp-python.
"""

from enginebay_llamacpp.backend import register_backends as register_backends
