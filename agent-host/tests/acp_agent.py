"""A server of the Agent Client Protocol for tests: it asks the model before each answer."""

from __future__ import annotations

import json
import os
import sys
import urllib.request
from typing import Any


def ask(message: str) -> str:
    """Return the model's answer, with the URL and token of the environment."""
    headers = {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"}
    with urllib.request.urlopen(urllib.request.Request(os.environ["OPENAI_BASE_URL"], message.encode(), headers)) as answer:
        return str(answer.read().decode())


def main() -> None:
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        method, session = request.get("method"), {"sessionId": "s"}
        if method == "session/prompt":
            text = ask(request["params"]["prompt"][0]["text"])
            chunk = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
            _send({"method": "session/update", "params": {**session, "update": chunk}})
        results: dict[str, Any] = {
            "initialize": {"protocolVersion": 1, "agentCapabilities": {}},
            "session/new": session,
            "session/prompt": {"stopReason": "end_turn"},
        }
        if "id" in request:
            _send({"id": request["id"], "result": results.get(method or "", {})})


def _send(message: dict[str, Any]) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


if __name__ == "__main__":
    main()
