"""``python -m opentta.cli``."""

from opentta.cli import main

main()
