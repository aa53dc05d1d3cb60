#!/bin/bash
cat > /logs/verifier/reward.json <<'END'
{}
END
