"""The wing that gives `enginebay` the command `conformance`."""

from collections.abc import Callable

from enginebay import Register, Wing, hookimpl


class Conformance(Wing):
    """The command `conformance`."""

    name = "conformance"

    def commands(self) -> Callable[..., None]:
        from enginebay_conformance.cli import conformance

        return conformance


@hookimpl
def register_wings(register: Register[Wing]) -> None:
    """Register the command."""
    register("conformance", Conformance())
