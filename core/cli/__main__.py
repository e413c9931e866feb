"""`python -m core.cli`, for where the `enginebay` script is not on the path."""

from core.cli.program import main

if __name__ == "__main__":
    main()
