#!/bin/bash
id -un > /data/agent-a
