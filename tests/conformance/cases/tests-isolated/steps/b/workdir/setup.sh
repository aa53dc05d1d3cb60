ls -A /tests /logs/verifier > /data/setup-saw
