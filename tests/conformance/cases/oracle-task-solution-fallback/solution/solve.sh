#!/bin/bash
touch /data/shared
