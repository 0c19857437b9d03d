"""``python -m opentta.cli``."""

from opentta.cli import main

if __name__ == "__main__":
    main()
