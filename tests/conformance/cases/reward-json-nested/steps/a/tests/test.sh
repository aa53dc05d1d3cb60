#!/bin/bash
cat > /logs/verifier/reward.json <<'END'
{"a": {"b": 1}}
END
