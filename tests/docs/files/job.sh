#!/bin/bash
#SBATCH --job-name=night
#SBATCH --gres=gpu:1
#SBATCH --time=01:00:00
echo "job $SLURM_JOB_ID"
