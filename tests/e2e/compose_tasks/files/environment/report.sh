#!/bin/bash
# What the service sees, one fact a line, in the volume that main has, too.
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
