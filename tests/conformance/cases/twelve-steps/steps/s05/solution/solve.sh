#!/bin/bash
echo s05 >> /data/order
