#!/bin/sh
echo "ran with $*"
