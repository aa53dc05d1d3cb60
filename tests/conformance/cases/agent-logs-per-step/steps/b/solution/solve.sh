#!/bin/bash
ls -A /logs/agent > /data/seen
