"""What routes share, typed: `services(http).models` instead of attributes of `app.state`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fastapi import FastAPI, Request

from enginebay.config.schema import Config
from enginebay.config.wing_sections import active_wings
from enginebay.contract.wing import Wing
from enginebay.models.catalog import Loadable
from enginebay.models.downloads import Downloads
from enginebay.models.loading.entry import ReportModelProgress
from enginebay.models.registry import Models
from enginebay.plugins import Plugins
from enginebay.server.api_document import ApiDocument
from enginebay.server.body_reader import BodyReader
from enginebay.server.observe.liveness import Watch
from enginebay.server.observe.prometheus import Metrics
from enginebay.server.paths import Paths
from enginebay.server.peers import Peers
from enginebay.server.reload import Reload
from enginebay.server.usage.key_use import KeyUses
from enginebay.server.usage.usage_file import usage_path
from enginebay.server.usage.usage_records import UsageRecords
from enginebay.serving.parts import Keeper, parts_of
from enginebay.serving.serving import Serving


@dataclass(frozen=True, slots=True, kw_only=True)
class Services(Keeper):
    """One of each for a server. All of them belong to its event loop."""

    config: Config
    plugins: Plugins
    serving: Serving
    metrics: Metrics
    watch: Watch
    key_uses: KeyUses
    paths: Paths
    reload: Reload
    bodies: BodyReader
    wings: Sequence[Wing]

    @property
    def models(self) -> Models:
        """The models of the server."""
        return self.serving.models

    @property
    def downloads(self) -> Downloads:
        """The downloads of the server."""
        return self.models.downloads

    @property
    def peers(self) -> Peers:
        """Other servers that share limits and settings with this one."""
        found: Peers = self.find(Peers)
        return found

    @property
    def greeting(self) -> str | None:
        """What clients of some API look for at `/`."""
        return next((wing.greeting for wing in self.wings if wing.greeting), None)


def make_services(
    config: Config,
    plugins: Plugins,
    report_progress: ReportModelProgress,
    use_keys: Callable[[Config], None],
) -> Services:
    """The services of a server; nothing is loaded or started yet. `use_keys`: see `Reload`."""
    wings = active_wings(config, plugins)
    parts = parts_of(config, plugins, wings, for_server=True)
    serving = Serving(
        config, plugins, report_progress, make_gate=parts.make_gate, make_backend=parts.make_backend
    )
    models = serving.models
    metrics = Metrics(models, serving.requests, serving.counts)
    watch = Watch(models, serving.counts, config.server.stall_timeout)
    metrics.register(watch)
    shared = Services(
        config=config,
        plugins=plugins,
        serving=serving,
        metrics=metrics,
        watch=watch,
        key_uses=parts.find(KeyUses) or KeyUses(UsageRecords(usage_path(config))),
        paths=Paths(plugins.routes, wings),
        wings=wings,
        reload=Reload(config, plugins, models, use_keys),
        bodies=BodyReader(config.server.max_request_items),
        own=parts.own,
    )
    shared.keep(parts.closing)
    if shared.find(Peers) is None:
        shared.keep(Peers())
    shared.keep(ApiDocument())
    shared.keep(Loadable(config, plugins, models))
    return shared


def services_of(app: FastAPI) -> Services:
    """The services of an application that `create_app` has made."""
    found: Services = app.state.services
    return found


def services(http: Request) -> Services:
    """The services of the server that a request came to."""
    return services_of(http.app)
