"""Formats of strings, as regular expressions.

https://json-schema.org/draft/2020-12/json-schema-validation#name-defined-formats

An expression may leave out rare texts of its format, such as abbreviated IPv6 addresses.
"""

_YEAR = r"(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
_LEAP_YEAR = r"(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DATE = (
    rf"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    rf"|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))|{_LEAP_YEAR}-02-29)"
)
_TIME = (
    r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?"
    r"(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
)
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOST = rf"{_LABEL}(?:\.{_LABEL}){{0,3}}"
_BYTE = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_HEX = "[0-9a-fA-F]"
_PATH = r"[A-Za-z0-9._~!$&'()*+,;=:@-]"

FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": r"P(?:[0-9]{1,9}W|[0-9]{1,9}D|(?:[0-9]{1,9}D)?T(?:[0-9]{1,9}H(?:[0-9]{1,9}M)?"
    r"(?:[0-9]{1,9}S)?|[0-9]{1,9}M(?:[0-9]{1,9}S)?|[0-9]{1,9}S))",
    "email": rf"[A-Za-z0-9_+-]{{1,32}}(?:\.[A-Za-z0-9_+-]{{1,31}})?@{_LABEL}(?:\.{_LABEL}){{1,3}}",
    "hostname": _HOST,
    "ipv4": rf"{_BYTE}(?:\.{_BYTE}){{3}}",
    "ipv6": rf"{_HEX}{{1,4}}(?::{_HEX}{{1,4}}){{7}}",
    "uuid": rf"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}",
    "uri": rf"[A-Za-z][A-Za-z0-9+.-]{{0,15}}://{_HOST}(?::[0-9]{{1,4}})?(?:/{_PATH}*)*"
    rf"(?:\?[A-Za-z0-9._~!$&'()*+,;=:@/?-]*)?(?:#{_PATH}*)?",
}
