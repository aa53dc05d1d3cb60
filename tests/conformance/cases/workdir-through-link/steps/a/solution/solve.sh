#!/bin/bash
ln -s /data /app/sub
