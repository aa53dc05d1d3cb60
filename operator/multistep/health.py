"""What /healthz and /readyz say: one line for each thing that is looked at, as kube-apiserver's do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from aiohttp import web

from .errors import MultistepError

CHECK_SECONDS: Final = 3.0

Check = Callable[[], Awaitable[str]]  # says how it is, or raises Unwell or another MultistepError


class Unwell(MultistepError):
    """What is wrong, in a few words."""


async def report(checks: Mapping[str, Check]) -> web.Response:
    """200 if all is well, else 503."""
    outcomes = [await _outcome(name, check) for name, check in checks.items()]
    well = all(ok for ok, _ in outcomes)
    lines = [line for _, line in outcomes] + ["ok" if well else "not ok"]
    return web.Response(text="".join(f"{line}\n" for line in lines), status=200 if well else 503)


async def _outcome(name: str, check: Check) -> tuple[bool, str]:
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            return True, f"[+] {name}: {await check()}"
    except MultistepError as error:
        return False, f"[-] {name}: {' '.join(str(error).split())}"
    except TimeoutError:
        return False, f"[-] {name}: no answer within {CHECK_SECONDS:g} s"
