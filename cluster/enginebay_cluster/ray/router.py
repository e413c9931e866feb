"""How Serve finds the replica for a call: the caller has chosen it, see `placing`."""

from ray.serve.exceptions import ReplicaUnavailableError
from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from enginebay_cluster.ray.fleets import fleet_of


class ReplicaRouter(RequestRouter):  # type: ignore[misc]  # mypy does not read Ray
    """A call goes to the replica that its argument `replica` names, and fails if it is not there.

    Tells the application's `Fleet` which replicas there are. Serve pickles this class with its
    module by value, so the module's own globals would be copies.
    """

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """The replicas to be tried, in order."""
        if pending_request is None:
            return [candidate_replicas]
        pending_request.routing_context.should_backoff = True
        wanted = pending_request.kwargs.get("replica")
        if wanted is None:
            return [candidate_replicas]
        found = [each for each in candidate_replicas if each.replica_id.unique_id == wanted]
        if found:
            return [found]
        if not pending_request.future.done():  # Serve itself would look for it again and again
            pending_request.future.set_exception(ReplicaUnavailableError(wanted))
        return [candidate_replicas]  # none of which is asked: it sees that the call has ended

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Serve has others than before."""
        super().update_replicas(replicas)
        fleet_of(self.app_name).change(frozenset(each.unique_id for each in self.curr_replicas))

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        """A call has failed since its replica is dead."""
        super().on_replica_actor_died(replica_id)
        fleet_of(self.app_name).lose(replica_id.unique_id)
