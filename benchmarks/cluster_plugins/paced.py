"""The backend `paced` of the benchmarks of clusters."""

from benchmarks.cluster_engine import register_backends as register_backends
