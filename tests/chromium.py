"""Which browser tests use, and how it is started."""

import os
import shutil

CHROMIUM = os.environ.get("ENGINEBAY_CHROMIUM") or next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
"""Its path, if there is one."""

# Without a network Chromium's own look-ups only fail, many at a time.
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
