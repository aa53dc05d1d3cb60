#!/bin/bash
mkdir -p /logs/artifacts
echo published > /logs/artifacts/p
