"""``python -m multistep.cli`` is the command line, too."""

from .main import main

main()
