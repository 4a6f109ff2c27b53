"""``python -m toril.cli``."""

from toril.cli.main import main

main()
