#!/bin/sh
# Any program will do. gpq runs it as it is, on a fixed number of GPUs, and never moves it.
#   gpq submit --gpus 1 -- sh blackbox.sh 20
# This one sums the Leibniz series, a million terms per step.
set -eu
steps=${1:-10}
echo "devices: ${CUDA_VISIBLE_DEVICES:-${GPQ_DEVICES:-none}}"
step=0
sum=0
while [ "$step" -lt "$steps" ]; do
    sum=$(awk -v step="$step" -v sum="$sum" 'BEGIN {
        for (k = step * 1000000; k < (step + 1) * 1000000; k++) sum += (k % 2 ? -4 : 4) / (2 * k + 1)
        printf "%.12f", sum
    }')
    step=$((step + 1))
    echo "step $step/$steps: pi is about $sum"
done
