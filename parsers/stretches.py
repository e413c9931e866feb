"""Which stretches of a text are thought, for whoever counts its tokens."""


class Stretches:
    """Notes in order how many characters are thought, tags included, and how many are not."""

    def __init__(self) -> None:
        self._stretches: list[tuple[int, bool]] = []

    def add(self, characters: int, *, thought: bool) -> None:
        """So many more characters of the text are thought, or are not."""
        if characters:
            self._stretches.append((characters, thought))

    def take(self) -> list[tuple[int, bool]]:
        """Everything noted since the last time."""
        stretches, self._stretches = self._stretches, []
        return stretches
