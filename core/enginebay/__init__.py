"""Everything a plugin author imports.

    from enginebay import hookimpl

    @hookimpl
    def register_backends(register):
        register("mine", create)

`docs/guides/plugins.md` is where authors begin. `enginebay.testing.check_backend` checks whether a
backend keeps its promises.

`__init__.pyi` lists the names and their modules, for type checkers and for this module. A name is
imported when it is first used, so `import enginebay` takes no time.
"""

import re
from importlib import import_module
from pathlib import Path

_HOMES = {
    name: module
    for module, name in re.findall(
        r"^from (\S+) import (\w+) as", Path(__file__).with_suffix(".pyi").read_text("utf-8"), re.M
    )
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
