"""Makes `python -m labkit` the same as `labkit`."""

from labkit.cli import main

main()
