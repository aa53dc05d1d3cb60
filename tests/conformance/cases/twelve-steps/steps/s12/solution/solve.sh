#!/bin/bash
echo s12 >> /data/order
