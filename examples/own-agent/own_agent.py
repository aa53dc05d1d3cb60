"""A custom agent, which a trial names by its import path. It asks the model for commands and runs them in the environment."""

import asyncio
import json
import os
import urllib.request

from harbor.agents.base import BaseAgent


class OwnAgent(BaseAgent):
    """Runs the commands that the model requests, until the model requests no further command."""

    @staticmethod
    def name():
        return "own-agent"

    def version(self):
        return "1.2.3"

    async def setup(self, environment):
        await environment.exec("mkdir -p /opt/own-agent", user="root")

    async def run(self, instruction, environment, context):
        messages, usage, log = [{"role": "user", "content": instruction}], [0, 0], []
        for _ in range(20):
            answer = await asyncio.to_thread(self._ask, messages)
            usage = [usage[0] + answer["usage"]["prompt_tokens"], usage[1] + answer["usage"]["completion_tokens"]]
            message = answer["choices"][0]["message"]
            messages.append(message)
            if not message.get("tool_calls"):
                break
            for call in message["tool_calls"]:
                command = json.loads(call["function"]["arguments"])["command"]
                result = await environment.exec(command)
                log.append(f"$ {command}\n{result.stdout}{result.stderr}")
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": f"{result.stdout}"})
        (self.logs_dir / "own-agent.txt").write_text("".join(log))
        context.n_input_tokens, context.n_output_tokens = usage

    def _ask(self, messages):
        tool = {"name": "bash", "parameters": {"type": "object", "properties": {"command": {"type": "string"}}}}
        body = {"model": self.model_name.partition("/")[2], "messages": messages, "tools": [{"type": "function", "function": tool}]}
        headers = {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", "Content-Type": "application/json"}
        url = f"{os.environ['OPENAI_BASE_URL']}/chat/completions"
        request = urllib.request.Request(url, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=120) as response:
            return json.load(response)
