"""What a node is told of an engine, and the backend that it makes of that."""

from dataclasses import replace
from pathlib import Path

from enginebay import Backend, BackendSettings, BackendUnavailableError, ReportProgress
from enginebay.config.schema import Config, ModelConfig, ServerConfig, resolved_path
from enginebay.models.downloads import SCHEME, places
from enginebay.models.files.model_paths import ModelPaths
from enginebay.models.loading.backend_settings import backend_settings
from enginebay.plugins import Plugins
from enginebay_cluster.contract import EngineSpec, Placement
from enginebay_cluster.settings import ClusterOptions, PlacementConfig, ReplicaRange


def engine_spec(settings: BackendSettings, options: ClusterOptions, config: Config) -> EngineSpec:
    """What a machine needs to make the engine of a model of the config."""
    folders = places(config)
    return EngineSpec(
        name=settings.names[0],
        backend=options.engine,
        path=settings.path,
        base=settings.base,
        options=options.options,
        isolation=settings.isolation,
        kv_store=settings.kv_store,
        model_dir=str(folders.models),
        lora_dir=str(folders.loras),
        plugins_folder=resolved_path(config.plugins.folder, config.base),
        blocked=tuple(config.plugins.blocked),
    )


def placement(config: PlacementConfig) -> Placement:
    """Where the config wants a model's engines."""
    replicas = config.replicas
    low, high = (
        (replicas.min, replicas.max) if isinstance(replicas, ReplicaRange) else (replicas, None)
    )
    return Placement(
        replicas=low,
        max_replicas=high,
        gpus=config.gpus,
        cpus=config.cpus,
        per_node=config.per_node,
        labels=tuple(config.labels),
    )


def create_backend(engine: EngineSpec, report_progress: ReportProgress) -> Backend:
    """A backend for a model of another server's config, by the plugins of this machine.

    `BackendUnavailableError`, which names this machine's part, if it cannot be made. Blocks.
    """
    plugins = Plugins(folder=Path(engine.plugins_folder), blocked=engine.blocked)
    entry = plugins.backends.get(engine.backend)
    if entry is None:
        raise BackendUnavailableError(
            f"this node has no backend {engine.backend!r}, only {', '.join(plugins.backends)}; "
            "install its plugin on every node that may run the model"
        )
    model = ModelConfig(
        name=engine.name,
        backend=engine.backend,
        path=engine.path,
        options=dict(engine.options),
        isolation=engine.isolation,
    )
    server = ServerConfig(model_dir=engine.model_dir, lora_dir=engine.lora_dir)
    paths = ModelPaths(Config(server=server, models=[model]), plugins)
    settings = backend_settings(model, entry, paths, report_progress)
    settings = replace(settings, base=engine.base, kv_store=engine.kv_store)
    if settings.path.startswith(SCHEME):
        raise BackendUnavailableError(
            f"{settings.path} is not on this node; run `enginebay download` there, or name a path "
            "that all nodes have"
        )
    if "://" not in settings.path and not Path(settings.path).exists():
        raise BackendUnavailableError(
            f"there is no file or folder {settings.path} on this node; a model must have the same "
            "path on every node that may run it"
        )
    return entry.create(settings)
