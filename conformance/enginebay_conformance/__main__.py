"""`enginebay-conformance`: how well a running server follows OpenAI's protocol, and other APIs."""

import argparse
import os
import sys

from enginebay_conformance.checks import GROUPS
from enginebay_conformance.report import TIMEOUT, check_server


def main() -> None:
    """Check the server that the arguments name, and exit."""
    parser = argparse.ArgumentParser(
        prog="enginebay-conformance",
        description="Check any server, row by row; exit code 1 if a check fails.",
    )
    parser.add_argument("url", metavar="URL", help="URL of a running server, of any kind.")
    parser.add_argument("--model", metavar="NAME", help="Model to use. [the first]")
    parser.add_argument(
        "--api-key",
        metavar="KEY",
        default=os.environ.get("ENGINEBAY_API_KEY"),
        help="API key; without it, the variable ENGINEBAY_API_KEY.",
    )
    parser.add_argument(
        "--group",
        metavar="API",
        action="append",
        help=f"Only this API: {', '.join(GROUPS)}. Repeatable.",
    )
    parser.add_argument(
        "--timeout", metavar="SECONDS", type=float, default=TIMEOUT, help="Read timeout in seconds."
    )
    arguments = parser.parse_args()
    sys.exit(
        check_server(
            arguments.url,
            model=arguments.model,
            api_key=arguments.api_key,
            groups=arguments.group or (),
            timeout=arguments.timeout,
        )
    )


if __name__ == "__main__":
    main()
