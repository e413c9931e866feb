"""What routes share, typed: `services(http).models` instead of attributes of `app.state`."""

from collections.abc import Callable
from dataclasses import dataclass

from fastapi import FastAPI, Request

from core.apis.kobold.genkeys import RunningTexts
from core.apis.ollama.ollama_models import ModelCards
from core.apis.response_store.open_store import open_store
from core.apis.response_store.store import ResponseStore
from core.config.schema import Config
from core.contract.cluster import Cluster
from core.models.catalog import Loadable
from core.models.downloads import Downloads
from core.models.files.model_paths import ModelPaths
from core.models.loading.entry import ReportModelProgress
from core.models.registry import Models
from core.plugins import Plugins
from core.server.observe.liveness import Watch
from core.server.observe.prometheus import Metrics
from core.server.paths import Paths
from core.server.reload import Reload
from core.server.usage.key_use import KeyUses
from core.server.usage.usage_file import usage_path
from core.server.usage.usage_records import UsageRecords
from core.serving.serving import Serving


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """One of each for a server. All of them belong to its event loop."""

    config: Config
    plugins: Plugins
    serving: Serving
    models: Models
    loadable: Loadable
    downloads: Downloads
    metrics: Metrics
    watch: Watch
    key_uses: KeyUses
    paths: Paths
    reload: Reload
    running_texts: RunningTexts
    model_cards: ModelCards
    response_store: ResponseStore | None
    cluster: Cluster | None


def make_services(
    config: Config,
    plugins: Plugins,
    report_progress: ReportModelProgress,
    use_keys: Callable[[Config], None],
) -> Services:
    """The services of a server; nothing is loaded or started yet. `use_keys`: see `Reload`."""
    cluster = plugins.cluster(config.cluster.settings(config.base)) if config.cluster else None
    serving = Serving(config, plugins, report_progress, cluster=cluster)
    models = serving.models
    apis = config.server.apis
    metrics = Metrics(models, serving.requests, serving.counts)
    watch = Watch(models, serving.counts, config.server.stall_timeout)
    metrics.register(watch)
    return Services(
        config=config,
        plugins=plugins,
        serving=serving,
        models=models,
        loadable=Loadable(config, plugins, models),
        downloads=models.downloads,
        metrics=metrics,
        watch=watch,
        key_uses=KeyUses(UsageRecords(usage_path(config))),
        running_texts=RunningTexts(),
        model_cards=ModelCards(plugins, ModelPaths(config, plugins)),
        paths=Paths(plugins.routes, apis),
        reload=Reload(config, plugins, models, use_keys),
        response_store=open_store(config.server, config.base) if "responses" in apis else None,
        cluster=cluster,
    )


def services_of(app: FastAPI) -> Services:
    """The services of an application that `create_app` has made."""
    found: Services = app.state.services
    return found


def services(http: Request) -> Services:
    """The services of the server that a request came to."""
    return services_of(http.app)
