"""Agents that look for the provider's key, and that use tokens of the model gateway that they may not use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.given import REWARD_ONE, Given, Object, Step, reward_for_text, trial
from tests.e2e.test_agents import KEY, OWN, agent, ledger, message, step
from tests.e2e.test_cli import multistep
from tests.support import servers

# An agent that gives its commands the token and the gateway's URL, which the program of an installed agent has, too.
HOSTILE = (
    OWN
    + '''

class HostileAgent(OwnAgent):
    """Runs its commands with the token and the URL of its step."""

    async def run(self, instruction, environment, context):
        given = {"TOKEN": os.environ["OPENAI_API_KEY"], "URL": os.environ["OPENAI_BASE_URL"]}
        with environment.scoped_exec_env(given):
            await super().run(instruction, environment, context)


class GivesUp(OwnAgent):
    """Ends its agent host in its setup, as one that gives up on a hard task."""

    async def setup(self, environment):
        os.kill(1, 6)
        await asyncio.sleep(600)


class GivesUpAsRoot(OwnAgent):
    """Ends its environment in its setup."""

    async def setup(self, environment):
        await environment.exec("kill -ABRT 1; sleep 600", user="root")
'''
)

# A program that searches the environment, memory and arguments of all processes, and all files, for the key and a control text, and
# prints which of them it found. It joins the texts from parts at run time, so that it does not find its own source.
SEARCH = r"""
use strict;
my %wanted = (key => join("-", split(/ /, "KEY PARTS")), control => join("-", "control", "text", "of", "the", "search"));
my %found = (key => 0, control => 0);
sub look { my ($text) = @_; for (keys %wanted) { $found{$_}++ if index($text, $wanted{$_}) >= 0 } }
sub slurp { my ($name) = @_; open(my $file, "<:raw", $name) or return ""; local $/; my $text = <$file>; return $text // "" }
sub memory {
    my ($pid) = @_;
    open(my $memory, "<:raw", "/proc/$pid/mem") or return;
    for (split /\n/, slurp("/proc/$pid/maps")) {
        my ($from, $to, $mode) = /^([0-9a-f]+)-([0-9a-f]+) (\S+)/ or next;
        next unless $mode =~ /^r/ and sysseek($memory, hex($from), 0);
        my $left = hex($to) - hex($from);
        my $last = "";
        while ($left > 0 and my $read = sysread($memory, my $text, $left < 1048576 ? $left : 1048576)) {
            look($last . $text);
            $last = substr($text, -256);
            $left -= $read;
        }
    }
}
for (glob "/proc/[0-9]*") {
    my ($pid) = m{(\d+)};
    next if $pid == $$;
    look(slurp("/proc/$pid/$_")) for qw(environ cmdline);
    memory($pid);
}
sub walk {
    my ($directory) = @_;
    opendir(my $entries, $directory) or return;
    for my $path (map { "$directory/$_" } grep { !/^\.\.?$/ } readdir $entries) {
        next if -l $path or $path =~ m{^/(proc|sys|dev)$};
        -d $path ? walk($path) : -f $path ? look(slurp($path)) : ();
    }
}
walk("");
print "key ", ($found{key} ? "found" : "absent"), ", control ", ($found{control} ? "found" : "absent"), "\n";
""".replace("KEY PARTS", KEY.replace("-", " "))

# A program that sends a chat request, and prints the HTTP status of the answer. Its arguments: URL, token, model.
ASK = r"""
use strict; use IO::Socket::INET;
my ($url, $token, $model) = @ARGV;
my ($host, $path) = $url =~ m{^http://([^/]+)(/.*)$};
my $body = qq({"model":"$model","messages":[{"role":"user","content":"hello"}]});
my $socket = IO::Socket::INET->new(PeerAddr => $host, Timeout => 20) or die "no connection to $host\n";
print $socket "POST $path/chat/completions HTTP/1.1\r\nHost: $host\r\nAuthorization: Bearer $token\r\n",
    "Content-Type: application/json\r\nContent-Length: ", length($body), "\r\nConnection: close\r\n\r\n$body";
print((<$socket> =~ /^HTTP\S+ (\d+)/)[0], "\n");
"""


def with_programs(name: str, *commands: str, test: str = REWARD_ONE) -> Step:
    """Return a step with the programs /tmp/search.pl and /tmp/ask.pl, in which the agent runs the commands."""
    given = step(name, *commands)
    setup = f"#!/bin/sh\ncat > /tmp/search.pl <<'EOF'\n{SEARCH}\nEOF\ncat > /tmp/ask.pl <<'EOF'\n{ASK}\nEOF\n"
    return Step(name, instruction=given.instruction, setup=setup, test=test)


async def hostile(given: Given, model: servers.Server, name: str = "HostileAgent") -> Object:
    """Return the fields of a trial's spec that select the hostile agent. name: its class."""
    spec = await agent(given, model)
    await given.applied({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "own"}, "data": {"own_agent.py": HOSTILE}})
    return {**spec, "agent": {**spec["agent"], "importPath": f"own_agent:{name}"}}


async def rewarded(given: Given, tmp_path: Path, *steps: Step, **spec: Any) -> None:
    """Run the trial and require that its tests reward each step; a failure shows the output of the tests."""
    found = await given.ended(trial(*steps, **spec))
    code, _, error = await multistep("results", found["metadata"]["name"], str(tmp_path / "out"), "-n", given.namespace)
    assert code == 0, error
    output = {step.name: (tmp_path / f"out/steps/{step.name}/verifier/test-stdout.txt").read_text() for step in steps}
    assert [each["rewards"] for each in found["status"]["steps"]] == [{"reward": 1.0}] * len(steps), output


@pytest.mark.long
async def test_root_finds_the_providers_key_in_no_process_memory_or_file(
    given: Given, model: servers.Server, tmp_path: Path
) -> None:
    nothing = "key absent, control found"
    control = "CONTROL=control-text-of-the-search sleep 600 & perl /tmp/search.pl > /tmp/seen-during"
    after = "perl /tmp/search.pl > /tmp/seen-after"
    steps = (
        with_programs("during", control, test=reward_for_text("/tmp/seen-during", nothing)),
        Step("after", test=reward_for_text("/tmp/seen-after", nothing).replace("cat", f"{after}; cat", 1)),
    )
    await rewarded(given, tmp_path, *steps, **await hostile(given, model))
    assert {entry["key"] for entry in await ledger(model)} == {KEY}  # the gateway added the provider's key


@pytest.mark.long
async def test_the_token_does_not_tell_an_agent_its_trial_attempt_and_sweep(
    given: Given, model: servers.Server, tmp_path: Path
) -> None:
    decode = 'printf "%s==" "$TOKEN" | cut -d. -f2 | tr -- -_ +/ | base64 -di > /tmp/claims'
    names = "! grep -q 'trial\\|attempt\\|sweep\\|sub' /tmp/claims && grep -o sealed /tmp/claims > /tmp/told"
    steps = (with_programs("first", f"{decode}; {names}", test=reward_for_text("/tmp/told", "sealed")),)
    await rewarded(given, tmp_path, *steps, **await hostile(given, model))


async def test_the_gateway_rejects_every_token_but_that_of_the_active_step(
    given: Given, model: servers.Server, tmp_path: Path
) -> None:
    keep = 'printf %s "$TOKEN" > /tmp/token; perl /tmp/ask.pl "$URL" "$TOKEN" gpt-5 > /tmp/own'
    asked = (
        '"$(cat /tmp/token)" gpt-5',  # the token of the step before
        '"$(printf %s "$TOKEN" | tr a-y b-z)" gpt-5',  # a changed token
        '"" gpt-5',
    )
    tries = "; ".join(f'perl /tmp/ask.pl "$URL" {each} >> /tmp/others' for each in asked)
    steps = (
        with_programs("first", keep, test=reward_for_text("/tmp/own", "200")),
        with_programs("second", tries, test=reward_for_text("/tmp/others", "\n".join(["401"] * 3))),
    )
    await rewarded(given, tmp_path, *steps, **await hostile(given, model))
    assert len([entry for entry in await ledger(model) if '"hello"' in entry["body"]]) == 1


@pytest.mark.parametrize(("name", "ended"), [("GivesUp", "the agent host"), ("GivesUpAsRoot", "the trial's container")])
async def test_an_agent_that_ends_a_container_in_its_setup_scores_0_and_is_not_retried(
    name: str, ended: str, given: Given, model: servers.Server
) -> None:
    found = await given.ended(trial(step("one"), **await hostile(given, model, name)))
    status = found["status"]
    assert f"{ended} ended with status 2" in message(found)
    assert status["failure"] == {"class": "Agent", "reason": "AgentSetupFailed"}, status
    assert status["score"] == 0.0 and status.get("attempts", []) == [], status
