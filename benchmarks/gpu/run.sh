#!/usr/bin/env bash
# The GPU check on a machine without network, with what prepare.py has put into FOLDER:
#
#     bash benchmarks/gpu/run.sh FOLDER [arguments of check.py]
#
# PY is the Python that has torch [python3], SITE where wheels go [a folder in /tmp], OUT a folder
# for copies of the results, if it is set.
set -euo pipefail
folder=$(realpath "${1:?the folder that prepare.py has written}")
shift
cd "$(dirname "$0")/../.."
PY=${PY:-python3}
SITE=${SITE:-${TMPDIR:-/tmp}/enginebay-gpu-site}

"$PY" benchmarks/gpu/unpack.py "$folder" "$SITE"
export PYTHONPATH="$SITE:$PWD${PYTHONPATH:+:$PYTHONPATH}"
export PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false

# torch brings the CUDA libraries that llama.cpp needs as well, and the headers that nvcc lacks.
cuda=$("$PY" -c 'import glob, site, sys
found = [p for s in sys.path for p in glob.glob(f"{s}/nvidia/cu[0-9]*")]
print(found[0] if found else "")')
if [ -n "$cuda" ]; then
  export LD_LIBRARY_PATH="$cuda/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
  export CPLUS_INCLUDE_PATH="$cuda/include${CPLUS_INCLUDE_PATH:+:$CPLUS_INCLUDE_PATH}"
fi

before=$(mktemp)
code=0
"$PY" benchmarks/gpu/check.py "$@" || code=$?
if [ -n "${OUT:-}" ]; then
  mkdir -p "$OUT"
  find benchmarks/results benchmarks/.peers -maxdepth 1 -newer "$before" \
    \( -name 'gpu-*.json' -o -name '*.log' \) -exec cp {} "$OUT" \;
fi
exit "$code"
