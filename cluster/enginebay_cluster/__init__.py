"""Engines on several machines: a cluster of Ray, and limits that its servers share."""

from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

from enginebay import (
    Backend,
    BackendRegister,
    BackendSettings,
    BackendUnavailableError,
    FreeMemory,
    InvalidRequestError,
    Register,
    Wing,
    hookimpl,
)
from enginebay_cluster import hookspecs
from enginebay_cluster.contract import Cluster, ClusterSettings
from enginebay_cluster.settings import NAME, ClusterConfig, ClusterOptions, PlacementConfig

if TYPE_CHECKING:
    import typer
    from fastapi import APIRouter

    from enginebay.config.schema import Config, ModelConfig
    from enginebay.contract.registers import BackendEntry
    from enginebay.kernel import Kernel, Parts
    from enginebay.plugins import Plugins


class ClusterWing(Wing):
    """Models whose engines run in a cluster, `/v1/cluster` and `enginebay cluster`."""

    name = NAME
    settings = ClusterConfig
    model_settings = PlacementConfig
    moved_in_models: Mapping[str, str] = {
        NAME: "options",
        "options": "options.options",
        "backend": "options.engine",
    }
    hooks = hookspecs

    def translate_model(self, model: "ModelConfig", section: PlacementConfig) -> None:
        placement = section.model_dump(exclude_unset=True)
        if model.backend == NAME:
            model.options = {**model.options, **placement}
        else:
            model.options = {**placement, "engine": model.backend, "options": model.options}
            model.backend = NAME

    def problems(self, config: "Config") -> Iterable[tuple[tuple[str | int, ...], str]]:
        if config.section(ClusterConfig) is None:
            message = "this config has no section `cluster`; add one: cluster: {address: auto}"
            for index, model in enumerate(config.models):
                if model.backend == NAME:
                    yield ("models", index, "backend"), message

    def extras(self, config: "Config", plugins: "Plugins") -> Iterable[str]:
        cluster = cluster_of(config, plugins)
        return [cluster.extra] if cluster and cluster.extra else []

    def replace(self, parts: "Parts", config: "Config") -> "Parts":
        section, cluster = config.section(ClusterConfig), cluster_of(config, parts.plugins)
        if section is None or cluster is None:
            return parts
        from enginebay_cluster.engine_spec import engine_spec, placement

        parts.keep(cluster)
        parts.closing.push_async_callback(cluster.close)

        async def make_backend(entry: "BackendEntry", settings: BackendSettings) -> Backend:
            if not isinstance(settings.options, ClusterOptions):
                return await parts.make_backend(entry, settings)
            await cluster.connect()
            return cluster.backend(
                engine_spec(settings, settings.options, config),
                placement(settings.options),
                report_progress=settings.report_progress,
                report_batch_size=settings.report_batch_size,
            )

        if not (section.share_limits and parts.for_server):
            return replace(parts, make_backend=make_backend)
        from enginebay_cluster.fronts.sharing import share

        sharing = share(config, cluster)
        for part in (sharing, sharing.key_uses, sharing.response_store):
            if part is not None:
                parts.keep(part)
        return replace(parts, make_backend=make_backend, make_gate=sharing.make_gate)

    def routers(self, kernel: "Kernel") -> "Iterable[APIRouter]":
        from enginebay.kernel import under_v1
        from enginebay_cluster.routes import cluster_router

        return under_v1(cluster_router(kernel.find(Cluster)))

    @asynccontextmanager
    async def running(self, kernel: "Kernel") -> AsyncGenerator[None, None]:
        if kernel.peers.name is None:  # nothing is shared
            yield
            return
        from enginebay_cluster.fronts.sharing import Sharing

        sharing = kernel.kept(Sharing)
        sharing.start(kernel)
        try:
            yield
        finally:
            await sharing.front.close()

    def commands(self) -> "typer.Typer":
        from enginebay_cluster.cli.commands import commands

        return commands()


def make_cluster(settings: ClusterSettings, plugins: "Plugins") -> Cluster | None:
    """The cluster of these settings; None if the config blocks clusters. Connects to nothing."""
    if NAME not in plugins.wings:
        return None
    made: Cluster | None = plugins.first("make_cluster", settings=settings)
    if made is None:
        from enginebay_cluster.ray.cluster import RayCluster

        made = RayCluster(settings)
    return made


def cluster_of(config: "Config", plugins: "Plugins") -> Cluster | None:
    """The cluster of a config; None without one. Connects to nothing."""
    section = config.section(ClusterConfig)
    return make_cluster(section.settings(config.base), plugins) if section else None


def _in_no_cluster(settings: BackendSettings) -> NoReturn:
    raise BackendUnavailableError(
        "its engines are to run in a cluster, and this server is in none; add the section "
        "`cluster` to the config and restart the server"
    )


def _no_estimate(settings: BackendSettings, free: FreeMemory) -> NoReturn:
    raise InvalidRequestError(
        f"the engines of model {settings.name!r} run on machines of the cluster, so this server "
        "cannot tell whether it fits; GET /v1/cluster has what each of them takes now"
    )


@hookimpl
def register_wings(register: Register[Wing]) -> None:
    """Register the cluster."""
    register(NAME, ClusterWing())


@hookimpl
def register_backends(register: BackendRegister) -> None:
    """Register the backend whose engines run in the cluster."""
    register(NAME, _in_no_cluster, ClusterOptions, estimate=_no_estimate, elsewhere=True)
