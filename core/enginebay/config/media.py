"""The keys of `server` about media: where pictures, sounds and videos come from, and how large."""

import re
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from enginebay.config.section import Section, Text
from enginebay.contract.media import MediaLimits
from enginebay.media.policy import MediaPolicy

_HOST = re.compile(r"(\*?\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)*|[0-9a-f:.]*:[0-9a-f:.]*", re.IGNORECASE)


def _host(text: str) -> str:
    if _HOST.fullmatch(text):
        return text.removeprefix("*").lower()
    raise ValueError("must be a host name such as example.org, or .example.org for all below it")


def _network(text: str) -> str:
    try:
        return str(ip_network(text))
    except ValueError as error:
        raise ValueError(f"must be a network such as 192.168.1.0/24; {error}") from error


MediaHost = Annotated[Text, AfterValidator(_host)]
Network = Annotated[Text, AfterValidator(_network)]


class MediaConfig(Section):
    """Where media of requests come from, and how large they may be."""

    fetch_media: bool = Field(
        True, description="Fetch pictures, sounds and videos whose http(s) URL a request has."
    )
    media_hosts: list[MediaHost] = Field(
        default=[],
        description="Fetch media only from these hosts; .example.org is all below it.",
    )
    media_networks: list[Network] = Field(
        default=[],
        description="Private networks from which media are fetched, too: 192.168.1.0/24.",
    )
    media_timeout: float = Field(
        10, gt=0, description="Seconds to fetch one of the media, with all redirects."
    )
    media_dir: Text | None = Field(
        None, description="Folder whose files requests may have as media, as file:// URLs."
    )
    max_media_items: int = Field(
        16, ge=0, description="Maximum number of pictures, sounds and videos in a request."
    )
    max_media_bytes: int = Field(
        20_000_000, gt=0, description="Maximum size of a picture, sound or video, in bytes."
    )
    max_media_total_bytes: int = Field(
        64_000_000, gt=0, description="Maximum size of all media of a request together, in bytes."
    )
    max_media_pixels: int = Field(
        40_000_000, gt=0, description="Maximum pixels of a picture, or of a frame of a video."
    )
    max_media_seconds: float = Field(
        600, gt=0, description="Maximum length of a sound or video, in seconds."
    )
    max_media_frames: int = Field(
        128, gt=0, description="Maximum number of frames that are taken from a video."
    )

    def media_policy(self, base: Path) -> MediaPolicy:
        """The same for `enginebay.media`; relative paths are relative to `base`."""
        return MediaPolicy(
            fetch=self.fetch_media,
            hosts=tuple(self.media_hosts),
            networks=tuple(ip_network(network) for network in self.media_networks),
            folder=base / Path(self.media_dir).expanduser() if self.media_dir else None,
            items=self.max_media_items,
            item_bytes=self.max_media_bytes,
            request_bytes=self.max_media_total_bytes,
            seconds=self.media_timeout,
            limits=MediaLimits(
                pixels=self.max_media_pixels,
                seconds=self.max_media_seconds,
                frames=self.max_media_frames,
            ),
        )
