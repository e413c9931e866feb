"""The command line. What a command needs is imported when it runs: `--help` takes no time."""

from enginebay.cli.program import main

__all__ = ["main"]
