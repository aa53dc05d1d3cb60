#!/bin/bash
set -e
for host in store linked the-host the-container database.example; do ask $host 7000 hello >/dev/null; done
ask "$STORE_HOST" 7000 "add done"
