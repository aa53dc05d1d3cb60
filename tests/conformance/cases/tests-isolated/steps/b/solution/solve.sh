#!/bin/bash
ls -A /tests /logs/verifier > /data/agent-saw
