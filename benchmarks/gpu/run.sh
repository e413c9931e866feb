#!/usr/bin/env bash
# The GPU check on a machine without network, out of the folder that prepare.py has written:
#
#     OUT=results BUDGET=480 bash FOLDER/run.sh [arguments of check.py]
#
# OUT is where results and logs go, as soon as there are any: seven files at most, each below
# 16 MiB. BUDGET is in seconds, the unpacking included. PY is the Python that has torch [python3],
# WORK where all is unpacked [a folder in /tmp]. To go on from an earlier run, put its
# gpu-check.json into FOLDER.
set -euo pipefail
folder=$(realpath "$(dirname "$0")")
mkdir -p "${OUT:?a folder for the results}"
OUT=$(realpath "$OUT")
exec > >(tee -a "$OUT/run.log") 2>&1
PY=${PY:-python3}
WORK=${WORK:-${TMPDIR:-/tmp}/enginebay-gpu}

mkdir -p "$WORK/tree"
"$PY" -m tarfile --filter data -e "$folder/tree.tar.xz" "$WORK/tree"
cd "$WORK/tree"
"$PY" benchmarks/gpu/unpack.py "$folder" "$WORK/site"
echo "unpacked after $SECONDS s"
export PYTHONPATH="$WORK/site:$PWD${PYTHONPATH:+:$PYTHONPATH}"
export PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
export ENGINEBAY_GPU_ANSWERS="$folder/answers.json"

# torch brings the CUDA libraries that llama.cpp needs as well, and the headers that nvcc lacks.
cuda=$("$PY" -c 'import glob, sys
found = [p for s in sys.path for p in glob.glob(f"{s}/nvidia/cu[0-9]*")]
print(found[0] if found else "")')
if [ -n "$cuda" ]; then
  export LD_LIBRARY_PATH="$cuda/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
  export CPLUS_INCLUDE_PATH="$cuda/include${CPLUS_INCLUDE_PATH:+:$CPLUS_INCLUDE_PATH}"
fi

exec "$PY" benchmarks/gpu/check.py --output "$OUT" --before "$folder/gpu-check.json" \
  --budget "$((${BUDGET:-480} - SECONDS))" "$@"
