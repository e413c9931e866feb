"""llama.cpp's calls for samplers, with addresses as numbers and without giving the GIL away."""

import ctypes
from typing import Any

from backends.llamacpp.library import llama

_library = ctypes.PyDLL(llama._lib._name)
_pointer, _int, _seed = ctypes.c_void_p, ctypes.c_int32, ctypes.c_uint32
_float, _size = ctypes.c_float, ctypes.c_size_t


def _call(name: str, result: Any, *arguments: Any) -> Any:
    function = getattr(_library, f"llama_sampler_{name}")
    function.argtypes, function.restype = arguments, result
    return function


accept = _call("accept", None, _pointer, _int)
apply = _call("apply", None, _pointer, _pointer)
clone = _call("clone", _pointer, _pointer)
free = _call("free", None, _pointer)

chain = _call("chain_init", _pointer, llama.llama_sampler_chain_params)
chain_add = _call("chain_add", None, _pointer, _pointer)
chain_length = _call("chain_n", _int, _pointer)

greedy = _call("init_greedy", _pointer)
dist = _call("init_dist", _pointer, _seed)
top_k = _call("init_top_k", _pointer, _int)
top_p = _call("init_top_p", _pointer, _float, _size)
min_p = _call("init_min_p", _pointer, _float, _size)
typical = _call("init_typical", _pointer, _float, _size)
top_n_sigma = _call("init_top_n_sigma", _pointer, _float)
temperature = _call("init_temp", _pointer, _float)
dynamic_temperature = _call("init_temp_ext", _pointer, _float, _float, _float)
xtc = _call("init_xtc", _pointer, _float, _float, _size, _seed)
mirostat = _call("init_mirostat", _pointer, _int, _seed, _float, _float, _int)
mirostat_v2 = _call("init_mirostat_v2", _pointer, _seed, _float, _float)
adaptive_p = _call("init_adaptive_p", _pointer, _float, _float, _seed)
