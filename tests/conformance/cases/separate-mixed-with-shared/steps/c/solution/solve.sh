#!/bin/bash
ls -A /tests > /app/saw.txt
