"""What routes share, typed: `services(http).models` instead of attributes of `app.state`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from fastapi import FastAPI, Request

from enginebay.apis.errors import FORMS
from enginebay.apis.ollama.ollama_models import ModelCards
from enginebay.apis.response_store.open_store import open_store
from enginebay.apis.response_store.store import ResponseStore
from enginebay.config.schema import Config
from enginebay.contract.cluster import Cluster
from enginebay.contract.wing import ErrorForm, Wing
from enginebay.models.catalog import Loadable
from enginebay.models.downloads import Downloads
from enginebay.models.files.model_paths import ModelPaths
from enginebay.models.loading.engine_spec import cluster_of
from enginebay.models.loading.entry import ReportModelProgress
from enginebay.models.loading.running_backends import local_gate
from enginebay.models.registry import Models
from enginebay.plugins import Plugins
from enginebay.server.api_document import ApiDocument
from enginebay.server.body_reader import BodyReader
from enginebay.server.observe.liveness import Watch
from enginebay.server.observe.prometheus import Metrics
from enginebay.server.paths import Paths
from enginebay.server.reload import Reload
from enginebay.server.usage.key_use import KeyUses
from enginebay.server.usage.usage_file import usage_path
from enginebay.server.usage.usage_records import UsageRecords
from enginebay.serving.serving import Serving

if TYPE_CHECKING:  # only servers that share something need any of it
    from enginebay.server.fronts.shared_settings import SharedSettings
    from enginebay.server.fronts.sharing import Sharing


T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """One of each for a server. All of them belong to its event loop.

    `sharing`, `settings`: what it has in common with other servers; None if it shares nothing.
    """

    config: Config
    plugins: Plugins
    serving: Serving
    models: Models
    loadable: Loadable
    downloads: Downloads
    metrics: Metrics
    watch: Watch
    key_uses: KeyUses
    bodies: BodyReader
    api_document: ApiDocument
    paths: Paths
    reload: Reload
    model_cards: ModelCards
    response_store: ResponseStore | None
    cluster: Cluster | None
    sharing: "Sharing | None"
    settings: "SharedSettings | None"
    wings: Sequence[Wing]
    own: dict[type[Any], Any] = field(default_factory=dict)

    def keep(self, value: object) -> None:
        """Keep what a wing has for this server, one value of each class."""
        self.own[type(value)] = value

    def kept(self, kind: type[T]) -> T:
        """Return the value of this class that a wing keeps."""
        value: T = self.own[kind]
        return value


def make_services(
    config: Config,
    plugins: Plugins,
    report_progress: ReportModelProgress,
    use_keys: Callable[[Config], None],
) -> Services:
    """The services of a server; nothing is loaded or started yet. `use_keys`: see `Reload`."""
    cluster = cluster_of(config, plugins)
    sharing = _sharing(config, cluster)
    make_gate = sharing.make_gate if sharing else local_gate
    serving = Serving(config, plugins, report_progress, cluster=cluster, make_gate=make_gate)
    models = serving.models
    wings = active_wings(config, plugins)
    apis = config.server.apis or ("responses", "messages", "ollama")
    metrics = Metrics(models, serving.requests, serving.counts)
    watch = Watch(models, serving.counts, config.server.stall_timeout)
    metrics.register(watch)
    if sharing:
        key_uses, response_store = sharing.key_uses, sharing.response_store
    else:
        key_uses = KeyUses(UsageRecords(usage_path(config)))
        response_store = open_store(config.server, config.base) if "responses" in apis else None
    return Services(
        config=config,
        plugins=plugins,
        serving=serving,
        models=models,
        loadable=Loadable(config, plugins, models),
        downloads=models.downloads,
        metrics=metrics,
        watch=watch,
        key_uses=key_uses,
        api_document=ApiDocument(),
        bodies=BodyReader(config.server.max_request_items),
        model_cards=ModelCards(plugins, ModelPaths(config, plugins)),
        paths=Paths(plugins.routes, error_forms(wings, apis)),
        wings=wings,
        reload=Reload(config, plugins, models, use_keys),
        response_store=response_store,
        cluster=cluster,
        sharing=sharing,
        settings=sharing.settings(models, plugins, config) if sharing else None,
    )


def active_wings(config: Config, plugins: Plugins) -> list[Wing]:
    """The wings of a server: all that are registered, except APIs that the config leaves out."""
    apis = config.server.apis
    return [
        wing
        for wing in plugins.wings.values()
        if apis is None or wing.name in apis or not wing.is_api
    ]


def error_forms(wings: Sequence[Wing], apis: Sequence[str]) -> dict[str, ErrorForm]:
    """The forms of errors of these wings, by prefix."""
    old = {prefix: form for api in apis for prefix, form in FORMS.get(api, {}).items()}
    return old | {prefix: form for wing in wings for prefix, form in wing.error_forms().items()}


def _sharing(config: Config, cluster: Cluster | None) -> "Sharing | None":
    if not (cluster and config.cluster and config.cluster.share_limits):
        return None
    from enginebay.server.fronts.sharing import share

    return share(config, cluster)


def services_of(app: FastAPI) -> Services:
    """The services of an application that `create_app` has made."""
    found: Services = app.state.services
    return found


def services(http: Request) -> Services:
    """The services of the server that a request came to."""
    return services_of(http.app)
