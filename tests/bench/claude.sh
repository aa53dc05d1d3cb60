#!/bin/bash
# Stands in for the program of claude-code, and needs nothing but bash: reads the instruction on stdin, makes model requests with
# pauses between them, as a real agent does, and then runs the instruction as a shell script.
set -eu
if [ "${1-}" = --version ]; then
  echo "2.0.0 (Claude Code)"
  exit
fi
instruction=$(cat)
address=${ANTHROPIC_BASE_URL#http://}
host=${address%%/*}
path=/${address#*/}/v1/messages
key=${ANTHROPIC_API_KEY:-${ANTHROPIC_AUTH_TOKEN-}}
model=${ANTHROPIC_MODEL:-claude-sonnet-4-5}
body='{"model":"'$model'","max_tokens":16,"messages":[{"role":"user","content":"say: ok"}]}'
for _ in $(seq "${REQUESTS:-3}"); do
  exec 3<>"/dev/tcp/${host%:*}/${host##*:}"
  printf 'POST %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\nx-api-key: %s\r\n' "$path" "$host" "$key" >&3
  printf 'Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s' "${#body}" "$body" >&3
  answer=$(cat <&3)
  exec 3>&-
  case $answer in
    "HTTP/1.1 200"*) ;;
    *) echo "the model answered: $answer" >&2; exit 1 ;;
  esac
  sleep "${PAUSE_SECONDS:-3}"
done
sh -euc "$instruction"
