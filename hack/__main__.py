"""Entry point of `python3 -m hack TARGET`, which hack/dev calls."""

import sys

from hack.cli import main

sys.exit(main(sys.argv[1:]))
