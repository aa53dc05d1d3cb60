#!/bin/bash
# Write what the service sees to the volume that it shares with main, one fact per line.
set -e
{
  cat /etc/app/a.conf /etc/app/below/b.conf /run/secrets/key /elsewhere/key /text /etc/text.conf
  stat -c '%a' /text
  [ -w /etc/app/a.conf ] && echo writable || echo read-only
  stat -f -c '%T' /scratch /memory /dev/shm
  df --output=size -k /scratch /memory /dev/shm | tail -n 3 | tr -d ' '
  ls /copied/profile.d >/dev/null && [ -e /copied/passwd ] && echo copied
  [ -z "$(ls -A /empty)" ] && echo empty
  [ -z "$(ls -A /own)" ] && echo own
  cat /part/note
} > /shared/facts
