"""Downloading models and LoRAs from a Hugging Face hub."""

from core.models.downloads.download import Control, Places, Progress, StoppedError, Wanted, download
from core.models.downloads.downloads import Downloads, places

__all__ = [
    "Control",
    "Downloads",
    "Places",
    "Progress",
    "StoppedError",
    "Wanted",
    "download",
    "places",
]
