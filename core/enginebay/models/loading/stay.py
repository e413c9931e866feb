"""How long a loaded model stays without requests, as requests have asked for."""


class Stay:
    """The idle times that requests ask for, until the model is unloaded.

    A user may lengthen the usual time. A user may shorten it only for a model that nobody else has
    used. Whoever may shorten it for everybody replaces the usual time and all that users asked for.
    Users are names of API keys; all requests without a key are one user. `commanded`: whether the
    model was loaded for everybody, by a command.
    """

    def __init__(self) -> None:
        self._users: set[str | None] = set()
        self._asked: dict[str | None, float] = {}
        self._for_everybody: float | None = None
        self.commanded = False

    def use(self, user: str | None) -> None:
        """Note that a request of this user uses the model."""
        self._users.add(user)

    def ask(self, user: str | None, seconds: float, *, for_everybody: bool) -> None:
        """Keep the model this long after each request, as far as the user may decide that."""
        if for_everybody:
            self._for_everybody = seconds
            self._asked.clear()
        else:
            self._asked[user] = seconds

    def seconds(self, usual: float, *, configured: bool) -> float:
        """The idle time; `usual` without requests that ask for another one."""
        if self._for_everybody is not None:
            usual = self._for_everybody
        elif not (configured or self.commanded) and len(self._users) == 1:
            return max(self._asked.values(), default=usual)
        return max([usual, *self._asked.values()])

    def end(self) -> None:
        """Forget everything: the model is unloaded."""
        self._users.clear()
        self._asked.clear()
        self._for_everybody, self.commanded = None, False
