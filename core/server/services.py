"""What routes share, typed: `services(http).models` instead of attributes of `app.state`."""

from dataclasses import dataclass
from pathlib import Path

from fastapi import FastAPI, Request

from core.chat.answer.capture import Captures
from core.chat.answer.running import RunningRequests
from core.chat.plan.planner import Planner
from core.config.schema import Config, resolved_path
from core.models.catalog import Loadable
from core.models.downloads import Downloads, places
from core.models.entry import ReportModelProgress
from core.models.registry import Models
from core.plugins import Plugins
from core.server.observe.liveness import Watch
from core.server.observe.prometheus import Metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """One of each for a server. All of them belong to its event loop."""

    config: Config
    plugins: Plugins
    models: Models
    loadable: Loadable
    planner: Planner
    requests: RunningRequests
    downloads: Downloads
    metrics: Metrics
    watch: Watch
    captures: Captures | None


def make_services(
    config: Config, plugins: Plugins, report_progress: ReportModelProgress
) -> Services:
    """The services of a server; nothing is loaded or started yet."""
    models = Models(config, plugins, report_progress)
    requests = RunningRequests()
    metrics = Metrics(models, requests)
    watch = Watch(models, metrics, config.server.stall_timeout)
    metrics.register(watch)
    return Services(
        config=config,
        plugins=plugins,
        models=models,
        loadable=Loadable(config, plugins, models),
        planner=Planner(config.server),
        requests=requests,
        downloads=Downloads(places(config)),
        metrics=metrics,
        watch=watch,
        captures=_captures(config),
    )


def services_of(app: FastAPI) -> Services:
    """The services of an application that `create_app` has made."""
    found: Services = app.state.services
    return found


def services(http: Request) -> Services:
    """The services of the server that a request came to."""
    return services_of(http.app)


def _captures(config: Config) -> Captures | None:
    if config.server.capture is None:
        return None
    folder = Path(resolved_path(config.server.capture, config.base))
    return Captures(folder, config.server.capture_files)
