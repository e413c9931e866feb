"""The section `cluster` of the config, and the options of models whose engines run in it."""

import re
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator

from enginebay.config.section import Section, Text
from enginebay_cluster.contract import ClusterSettings

NAME = "cluster"
"""The name of the wing, its section, and its backend."""

_HOST_AND_PORT = re.compile(r"(?:[\w.-]+|\[[0-9a-f:.]+\]):(\d{1,5})", re.ASCII | re.IGNORECASE)


def head_address(text: str) -> str:
    """`text`, which is HOST:PORT, or auto; `ValueError` if it is not."""
    found = _HOST_AND_PORT.fullmatch(text)
    if text == "auto" or (found and 0 < int(found[1]) < 65_536):
        return text
    raise ValueError("must be HOST:PORT of the head, such as 10.0.0.1:6379 or [::1]:6379, or auto")


class ClusterConfig(Section):
    """The cluster of this server, for engines on other machines; unset: none."""

    address: Annotated[Text, AfterValidator(head_address)] = Field(
        "auto",
        description="Where the head listens, HOST:PORT; auto: as this machine's node knows it.",
    )
    token_file: Text = Field(
        "cluster.token",
        description="File with the cluster's token, which `enginebay cluster up` writes.",
    )
    share_limits: bool = Field(
        False,
        description="Share limits of keys, queues and usage with other servers of the cluster.",
    )
    heartbeat: float = Field(
        5,
        gt=0,
        description="Longest silence of an engine, in seconds; after three it is given up.",
    )
    window: float = Field(
        0,
        ge=0,
        le=1,
        description="Seconds of deltas that engines send as one message; 0 sends every step.",
    )
    drain_timeout: float = Field(
        600,
        ge=0,
        description="Seconds that running answers get to finish when their engine is replaced.",
    )

    def settings(self, base: Path) -> ClusterSettings:
        """The same for a `Cluster`; `base`: the folder that paths are relative to."""
        return ClusterSettings(
            address=self.address,
            token_file=str(base / Path(self.token_file).expanduser()),
            heartbeat=self.heartbeat,
            window=self.window,
            drain_timeout=self.drain_timeout,
            shared=self.share_limits,
        )


class ReplicaRange(Section):
    """As many engines as the load asks for."""

    min: int = Field(1, ge=1, description="Fewest engines.")
    max: int = Field(ge=1, description="Most engines.")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.max < self.min:
            raise ValueError(f"max is {self.max}, which is less than min, {self.min}")
        return self


def _number_or_range(value: Any) -> str:
    return "range" if isinstance(value, dict | ReplicaRange) else "number"


Replicas = Annotated[
    Annotated[int, Tag("number")] | Annotated[ReplicaRange, Tag("range")],
    Discriminator(_number_or_range),  # or errors of one would come with those of the other
]


def _whole_or_part(gpus: float) -> float:
    if gpus > 1 and gpus != int(gpus):
        raise ValueError("more than one GPU must be a whole number")
    return gpus


class PlacementConfig(Section):
    """How many engines of a model the cluster runs, and what each needs of its node."""

    replicas: Replicas = Field(
        1, description="How many engines; or {min: 1, max: 4}, as many as the load asks for."
    )
    gpus: Annotated[float, AfterValidator(_whole_or_part)] = Field(
        0, ge=0, description="GPUs of each engine; below 1 for engines that share one."
    )
    cpus: float = Field(1, ge=0, description="CPUs of each engine, as the cluster counts them.")
    per_node: int | None = Field(
        None, ge=1, description="Most engines on one node; unlimited if unset."
    )
    labels: list[Text] = Field(
        default=[], description="Labels that a node must have been started with."
    )

    @model_validator(mode="after")
    def _some(self) -> Self:
        if isinstance(self.replicas, int) and self.replicas < 1:
            raise ValueError("replicas must be at least 1; delete the model to run none")
        return self


class ClusterOptions(PlacementConfig):
    """The options of a model whose engines run in the cluster."""

    engine: Text = Field(description="Backend of the engines, which their nodes must have.")
    options: dict[str, Any] = Field(default={}, description="Options of that backend.")
