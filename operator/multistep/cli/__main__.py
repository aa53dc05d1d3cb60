"""``python -m multistep.cli`` runs the command `multistep`."""

from multistep.cli.main import main

main()
