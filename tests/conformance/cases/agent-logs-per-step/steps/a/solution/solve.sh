#!/bin/bash
echo x > /logs/agent/left; echo x > /logs/agent/.hidden; mkdir /logs/agent/dir
