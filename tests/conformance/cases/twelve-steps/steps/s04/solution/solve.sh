#!/bin/bash
echo s04 >> /data/order
