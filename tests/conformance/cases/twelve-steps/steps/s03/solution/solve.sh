#!/bin/bash
echo s03 >> /data/order
