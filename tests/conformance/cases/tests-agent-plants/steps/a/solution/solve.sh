#!/bin/bash
mkdir -p /tests /logs/verifier; echo 'exit 0' > /tests/test.sh; echo 'echo 1 > /logs/verifier/reward.txt' > /tests/helper.sh; echo 1 > /logs/verifier/reward.txt; echo '{"reward": 1}' > /logs/verifier/reward.json
