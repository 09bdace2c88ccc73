"""``python -m plumbline``: the command line."""

from plumbline.cli import main

main()
