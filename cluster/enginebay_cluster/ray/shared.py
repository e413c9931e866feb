"""An object of which the cluster has one: an actor, which is found by its name."""

from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from enginebay import ServingError
from enginebay_cluster.contract import ClusterError, SharedObject
from enginebay_cluster.ray.links import first_line
from enginebay_cluster.ray.nodes import HEAD_RESOURCE

NAMESPACE = "enginebay"


class _Host:
    """The actor. It makes the object when it is called first, on its event loop."""

    def __init__(self, create: Callable[[], Any]) -> None:
        self._create = create
        self._object: Any = None

    async def call(self, method: str, args: tuple[Any, ...]) -> tuple[bool, Any]:
        """Whether the method returned, and what; or the `ServingError` that it raised."""
        if self._object is None:
            self._object = self._create()
        try:
            return True, await getattr(self._object, method)(*args)
        except ServingError as error:
            return False, error


class SharedActor(SharedObject):
    """The object of this name, made on the head's node if there is none. Creating one blocks."""

    def __init__(self, name: str, create: Callable[[], Any]) -> None:
        actor = ray.remote(_Host).options(
            name=name,
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            num_cpus=0,
            resources={HEAD_RESOURCE: 0.001},
            max_concurrency=100_000,
            max_restarts=-1,
        )
        self._actor = actor.remote(create)

    async def call(self, method: str, *args: Any) -> Any:
        try:
            returned, value = await self._actor.call.remote(method, args)
        except RayTaskError:  # a fault of the object's, not of the cluster's
            raise
        except RayError as error:
            raise ClusterError(
                f"what the cluster's servers share cannot be reached: {first_line(error)}; it is "
                "started again as soon as its head runs"
            ) from error
        if not returned:
            raise value
        return value


def end_all() -> list[str]:
    """End all that is shared; their names. Blocks."""
    found = ray.util.list_named_actors(all_namespaces=True)
    names = [each["name"] for each in found if each["namespace"] == NAMESPACE]
    for name in names:
        ray.kill(ray.get_actor(name, namespace=NAMESPACE))
    return names
