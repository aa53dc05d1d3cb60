"""``python -m multistep.cli`` is the command line, too."""

from multistep.cli.main import main

main()
