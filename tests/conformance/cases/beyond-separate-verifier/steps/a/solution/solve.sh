#!/bin/bash
echo one > /app/out.txt
mkdir -p /app/tree /tests /logs/verifier
echo x > /app/tree/x
echo secret > /app/secret
echo planted > /tests/planted
echo '{"forged": 1}' > /logs/verifier/reward.json
touch /data/left
