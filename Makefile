# Shortcuts for people who have make; everything works without it through start.py.
PYTHON ?= python3

.PHONY: serve test test-clients try-image check gpu-check bench bench-peers

serve:
	$(PYTHON) start.py

test:
	$(PYTHON) start.py test

# SillyTavern and Open WebUI in headless Chromium, Codex and the AI SDK; installs them first.
test-clients:
	$(PYTHON) start.py install test
	$(PYTHON) start.py python -m tests.clients.run

# Builds the CPU image with docker and tries a container of it; see docs/start/containers.md.
try-image:
	$(PYTHON) containers/try.py

check:
	$(PYTHON) start.py check

# Correctness and speed of every engine on this machine's GPU, in BUDGET seconds; see docs/gpu.md.
BUDGET ?= 480
gpu-check:
	$(PYTHON) start.py install test
	$(PYTHON) start.py python benchmarks/gpu/check.py --budget $(BUDGET) $(ARGUMENTS)

bench:
	$(PYTHON) start.py install conformance  # the OpenAI SDK, with which this benchmark asks
	$(PYTHON) start.py python benchmarks/concurrency.py

# Enginebay and its peers under the same load; installs the peers first.
bench-peers:
	$(PYTHON) start.py python benchmarks/peers.py
