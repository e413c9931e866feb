"""Engines on several machines: a cluster of Ray, and what its servers share."""

from enginebay import Cluster, ClusterSettings, hookimpl


@hookimpl(trylast=True)
def make_cluster(settings: ClusterSettings) -> Cluster:
    """A cluster of Ray, which is imported when it is connected to."""
    from enginebay_cluster.ray.cluster import RayCluster

    return RayCluster(settings)
