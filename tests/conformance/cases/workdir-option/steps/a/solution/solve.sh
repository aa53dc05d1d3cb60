#!/bin/bash
pwd > agent
