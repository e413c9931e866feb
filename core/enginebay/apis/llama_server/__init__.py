"""llama-server's own API: https://github.com/ggml-org/llama.cpp/tree/master/tools/server."""
