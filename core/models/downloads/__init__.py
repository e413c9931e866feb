"""Downloading models and LoRAs from a Hugging Face hub, and finding what it has."""

from core.models.downloads.choose import Choice, Form, size_text
from core.models.downloads.download import Control, Places, Progress, StoppedError, download
from core.models.downloads.downloads import Downloads, places
from core.models.downloads.named import SCHEME, HubName, LocalModel, find_local, hub_names
from core.models.downloads.resolve import Resolved, Wanted, resolve
from core.models.downloads.search import FoundRepository, models_of, search

__all__ = [
    "SCHEME",
    "Choice",
    "Control",
    "Downloads",
    "Form",
    "FoundRepository",
    "HubName",
    "LocalModel",
    "Places",
    "Progress",
    "Resolved",
    "StoppedError",
    "Wanted",
    "download",
    "find_local",
    "hub_names",
    "models_of",
    "places",
    "resolve",
    "search",
    "size_text",
]
