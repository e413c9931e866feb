"""The hook that plugins may implement for another kind of cluster."""

from enginebay.contract.hookspecs import hookspec
from enginebay_cluster.contract import Cluster, ClusterSettings


@hookspec(firstresult=True)
def make_cluster(settings: ClusterSettings) -> Cluster | None:
    """Called once at start if the config has a section `cluster`, and by `enginebay cluster`.

    The first result that is not None is used; without one, it is a cluster of Ray. Import the
    library in the `Cluster`'s methods, not here.
    """
