#!/bin/bash
echo s09 >> /data/order
