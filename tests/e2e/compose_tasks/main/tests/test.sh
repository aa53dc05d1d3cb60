#!/bin/bash
cat /tmp/solved; ask localhost 7000 hello
[ "$(cat /tmp/solved | tr '\n' ' ')" = "/srv 1000 toml file toml default " ] && [ "$(ask localhost 7000 hello)" = solved ] \
  && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt
