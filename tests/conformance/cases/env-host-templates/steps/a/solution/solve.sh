#!/bin/bash
echo "$S/$G" > /data/agent
