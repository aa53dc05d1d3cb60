#!/bin/bash
echo s08 >> /data/order
