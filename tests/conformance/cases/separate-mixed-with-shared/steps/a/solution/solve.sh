#!/bin/bash
mkdir -p /tests
touch /tests/of-agent /data/only-with-agent
ls -A /tests > /app/saw.txt
