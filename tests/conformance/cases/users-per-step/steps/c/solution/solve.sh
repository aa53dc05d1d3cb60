#!/bin/bash
id -un > /data/agent-c
