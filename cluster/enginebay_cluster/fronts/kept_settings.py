"""What was set while servers run, and which of two settings holds."""

from collections.abc import Iterator

from enginebay_cluster.fronts.said import Setting, SettingKey, Settings


class KeptSettings:
    """The latest of each setting, wherever it was made. What is set for all models goes before what
    was set for one of them earlier.
    """

    def __init__(self) -> None:
        self._kept: dict[SettingKey, Setting] = {}

    def __iter__(self) -> Iterator[tuple[SettingKey, Setting]]:
        """All of them, the earliest first."""
        return iter(sorted(self._kept.items(), key=lambda item: item[1].version))

    def all(self) -> Settings:
        """The same as data."""
        return dict(self)

    def newest(self) -> int:
        """The time of the last one; 0 without any."""
        return max((setting.version[0] for setting in self._kept.values()), default=0)

    def lacks(self, settings: Settings) -> bool:
        """Whether one of these is later than what is kept."""
        return any(self._lacks(key, each) for key, each in settings.items())

    def merge(self, settings: Settings) -> Settings:
        """Keep those that are later than what is kept; returns them."""
        newer = {key: each for key, each in settings.items() if self._lacks(key, each)}
        self._kept.update(newer)
        for key in [key for key, each in self._kept.items() if self._is_over(key, each)]:
            del self._kept[key]
        return {key: each for key, each in newer.items() if key in self._kept}

    def _lacks(self, key: SettingKey, setting: Setting) -> bool:
        kept = self._kept.get(key)
        return kept is None or kept.version < setting.version

    def _is_over(self, key: SettingKey, setting: Setting) -> bool:
        of_all = self._kept.get(SettingKey(key.kind, None))
        return of_all is not None and of_all.version > setting.version
