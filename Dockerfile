# The images of Enginebay: docs/start/containers.md.
#   docker build .                  for CPUs, with the engines hf and llamacpp
#   docker build --target cuda .    for NVIDIA GPUs, with exllamav2, too

ARG DEBIAN=debian:bookworm-slim

# What both images have besides their Python packages. No compiler.
FROM ${DEBIAN} AS runtime
RUN apt-get update \
 && apt-get install -y --no-install-recommends ca-certificates libgomp1 python3 tini \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --uid 1000 --user-group --home-dir /data --no-create-home enginebay \
 && install --directory --owner=1000 --group=1000 /data /data/models
COPY containers/entrypoint.sh /usr/local/bin/enginebay-container
ENV PATH=/opt/enginebay/bin:$PATH \
    HOME=/data \
    PYTHONUNBUFFERED=1 \
    ENGINEBAY_SERVER__HOST=0.0.0.0
USER 1000:1000
WORKDIR /data
EXPOSE 5000
# Live, not ready: while a large model loads the server is well, and restarting it would not help.
HEALTHCHECK --interval=30s --timeout=10s --start-period=60s CMD ["enginebay", "health", "--live"]
ENTRYPOINT ["tini", "--", "enginebay-container"]
CMD ["serve"]

FROM ${DEBIAN} AS build
RUN apt-get update \
 && apt-get install -y --no-install-recommends \
    ca-certificates cmake g++ ninja-build python3-dev python3-venv \
 && rm -rf /var/lib/apt/lists/* \
 && python3 -m venv /opt/enginebay
ENV PATH=/opt/enginebay/bin:$PATH
WORKDIR /src

# Enginebay's own files, as a layer apart: all that an update brings if its packages stay the same.
FROM build AS files
COPY . .
RUN pip install --no-deps --prefix=/files/opt/enginebay . \
 && mkdir -p /files/usr/share/enginebay \
 && cp -r demo/model /files/usr/share/enginebay/demo-model \
 && sed 's#path: demo/model#path: /usr/share/enginebay/demo-model#' config.yml \
    > /files/usr/share/enginebay/config.yml

FROM build AS packages-cpu
ARG EXTRAS="hf llamacpp media"
# On Linux PyPI's torch is the one for CUDA, with gigabytes of its libraries.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
# For any processor with AVX2 or NEON, instead of the one that compiles.
ARG CMAKE_ARGS="-DGGML_NATIVE=off"
COPY pyproject.toml constraints.txt containers/requirements.py ./
RUN --mount=type=cache,target=/root/.cache/pip \
    python requirements.py ${EXTRAS} > requirements.txt \
 && pip install --extra-index-url "${TORCH_INDEX}" -c constraints.txt -r requirements.txt

FROM runtime AS cpu
COPY --from=packages-cpu /opt/enginebay /opt/enginebay
COPY --from=files /files /
VOLUME /data

# The compiler for CUDA, in the version that torch is built with (`torch.version.cuda`).
FROM nvidia/cuda:13.0.2-devel-ubuntu22.04 AS toolkit

FROM build AS packages-cuda
ARG EXTRAS="hf llamacpp media exllamav2"
# Compute capabilities: Turing, A100, RTX 30 and 40, H100, RTX 50, and newer ones by PTX.
ARG CUDA_ARCHITECTURES="7.5 8.0 8.6 8.9 9.0 12.0"
ARG JOBS=4
COPY pyproject.toml constraints.txt containers/requirements.py ./
# torch brings the CUDA libraries that llama.cpp and exllamav2 use when they run.
RUN --mount=type=bind,from=toolkit,source=/usr/local,target=/usr/local \
    --mount=type=cache,target=/root/.cache/pip \
    python requirements.py ${EXTRAS} > requirements.txt \
 && export CUDA_HOME="$(echo /usr/local/cuda-13.*)" CMAKE_BUILD_PARALLEL_LEVEL=${JOBS} \
 && export CUDACXX="${CUDA_HOME}/bin/nvcc" \
 && export CMAKE_ARGS="-DGGML_CUDA=on -DGGML_CUDA_NCCL=off -DGGML_NATIVE=off \
    -DCMAKE_CUDA_ARCHITECTURES=$(echo "${CUDA_ARCHITECTURES}" | tr -d . | tr ' ' ';')" \
 && pip install --no-cache-dir -c constraints.txt -r requirements.txt
# exllamav2 compiles its extension when it is first imported, which needs no GPU.
RUN --mount=type=bind,from=toolkit,source=/usr/local,target=/usr/local \
    case " ${EXTRAS} " in *" exllamav2 "*) \
    pip install --no-cache-dir ninja \
 && export CUDA_HOME="$(echo /usr/local/cuda-13.*)" MAX_JOBS=${JOBS} TORCH_EXTENSIONS_DIR=/ext \
 && export TORCH_CUDA_ARCH_LIST="${CUDA_ARCHITECTURES}+PTX" \
 && python -c "import exllamav2.ext" \
 && cp /ext/exllamav2_ext/exllamav2_ext.so /opt/enginebay/lib/python3.*/site-packages/ \
    ;; esac

FROM runtime AS cuda
COPY --from=packages-cuda /opt/enginebay /opt/enginebay
COPY --from=files /files /
ENV LD_LIBRARY_PATH=/opt/enginebay/lib/python3.11/site-packages/nvidia/cu13/lib \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
VOLUME /data

# The image of `docker build .` is that of the last stage.
FROM cpu
