"""The environment of runs of pytest that tests of hack/ start."""

import os

# Without plugins, pytest starts in a third of the time; runs that need one name it with -p.
BARE = os.environ | {"PYTHONUNBUFFERED": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
