"""What `helm test` does in its pod: asks the operator how it is, and runs a trial of one step if it may."""

import asyncio
import json
import os
import sys
import time
from urllib.error import URLError
from urllib.request import urlopen

from multistep.kube.client import ClusterClient
from multistep.kube.resources import TRIALS

URL = os.environ["URL"]
END = time.monotonic() + float(os.environ["TIMEOUT_SECONDS"])
TRIAL = os.environ.get("TRIAL")


def asked(path: str) -> str:
    """What the operator answers; it may just have been started."""
    while True:
        try:
            with urlopen(URL + path, timeout=5) as answer:
                return str(answer.read().decode())
        except (URLError, OSError) as error:
            if time.monotonic() > END:
                sys.exit(f"{URL}{path}: {error}")
            time.sleep(0.5)


async def tried(manifest: dict[str, object]) -> str:
    """Run a trial, delete it, and return its result."""
    async with await ClusterClient.connect() as client:
        created = (await client.create(manifest))["metadata"]
        name, namespace = created["name"], created["namespace"]
        try:
            while time.monotonic() < END:
                status = (await client.get(TRIALS, namespace, name)).get("status") or {}
                if status.get("phase") in ("Complete", "Failed"):
                    break
                await asyncio.sleep(0.5)
        finally:
            await client.delete(TRIALS, namespace, name)
    if status.get("phase") == "Complete" and status.get("rewards") == {"reward": 1}:
        return f"trial {namespace}/{name} has reward 1"
    ready: dict[str, str] = next((each for each in status.get("conditions", []) if each["type"] == "Ready"), {})
    why = f"{ready.get('reason')}: {ready.get('message')}; rewards: {status.get('rewards')}"
    return sys.exit(f"trial {namespace}/{name} did not get reward 1: {status.get('phase')}: {why}")


print(asked("/readyz"))
if "\nmultistep_leading " not in (metrics := asked("/metrics")):
    sys.exit(f"{URL}/metrics lacks the operator's metrics: {metrics[:500]}")
print("the operator serves its metrics")
if TRIAL:
    print(asyncio.run(tried(json.loads(TRIAL))))
