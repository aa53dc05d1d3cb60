#!/bin/bash
echo s07 >> /data/order
