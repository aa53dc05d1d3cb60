"""``python -m multistep.gateway`` starts the model gateway."""

import uvloop

from multistep import logs
from multistep.gateway.http.servers import serve
from multistep.gateway.settings import GatewaySettings


def main() -> None:
    """Run the gateway until it is stopped."""
    settings = GatewaySettings()
    logs.set_up(settings.log_level, settings.log_format)
    uvloop.run(serve(settings))


if __name__ == "__main__":
    main()
