"""Checks from outside whether a server follows its APIs, for any server and model.

`enginebay-conformance URL` prints what they find, row by row. What depends on the words of a model
cannot be seen from outside: the tests of Enginebay check this (docs/reference/conformance.md).
"""

from importlib.util import find_spec

if find_spec("enginebay"):  # then its command line has these checks, too
    from enginebay_conformance.wing import register_wings as register_wings
