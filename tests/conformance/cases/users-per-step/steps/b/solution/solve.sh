#!/bin/bash
id -un > /data/agent-b
