"""`python -m enginebay.cli`, for where the `enginebay` script is not on the path."""

from enginebay.cli.program import main

if __name__ == "__main__":
    main()
