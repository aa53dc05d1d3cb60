#!/bin/bash
ask shop 7000 "add book"
