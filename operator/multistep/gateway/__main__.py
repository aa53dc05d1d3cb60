"""``python -m multistep.gateway`` starts the model gateway."""

import uvloop

from multistep import loglines
from multistep.gateway.app import serve
from multistep.gateway.settings import GatewaySettings


def main() -> None:
    """Run the gateway until it is stopped."""
    settings = GatewaySettings()
    loglines.set_up(settings.log_level, settings.log_format)
    uvloop.run(serve(settings))


if __name__ == "__main__":
    main()
