"""Downloading models and LoRAs from a Hugging Face hub, and finding what it has."""

from enginebay.models.downloads.choose import Choice, Form, size_text
from enginebay.models.downloads.download import Control, Places, Progress, StoppedError, download
from enginebay.models.downloads.downloads import Downloads, places
from enginebay.models.downloads.named import SCHEME, HubName, LocalModel, find_local, hub_names
from enginebay.models.downloads.resolve import Resolved, Wanted, resolve
from enginebay.models.downloads.search import FoundRepository, models_of, search

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
