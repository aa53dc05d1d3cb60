#!/bin/bash
touch /data/ran
