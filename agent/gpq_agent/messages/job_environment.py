"""Variables of a job's processes, and exit codes that mean something to gpq."""

ENV_JOB = "GPQ_JOB_ID"
ENV_ATTEMPT = "GPQ_ATTEMPT"  # "<attempt number>"
# "<spool id>:<job>.<attempt>": inherited by every process of the tree, so that escapees are found
ENV_MARK = "GPQ_MARK"
ENV_RUN_DIR = "GPQ_RUN_DIR"  # the attempt's directory
ENV_CHECKPOINT_DIR = "GPQ_CHECKPOINT_DIR"  # the job's own, the same for all its attempts
ENV_RESUME = "GPQ_RESUME"  # "1" from the second attempt on
ENV_DONE_FILE = "GPQ_DONE_FILE"  # the order's `done_file`, absolute
ENV_CORES = "GPQ_CORES"  # cores by local rank: "0,1;2,3" (CPU slots only)
# a JSON object: variables that gpq chose for this server, which no submission from the job notes
ENV_DEFAULTS = "GPQ_DEFAULTS"
ENV_DEVICES = "GPQ_DEVICES"  # device ids of this node, comma-separated
# in the folder of a shape that is checked: what its script has written and removed
CHECK_FILES = "files"
# PYTHONHASHSEED of every process of a job: sets and their like keep their order over restarts
HASH_SEED = "0"
# codes of habits that the library may suspect as it likes, comma-separated
ENV_ACCEPTED = "GPQ_ACCEPTED"
ENV_PROOF = "GPQ_PROOF"  # a Proof as a JSON object
ENV_TRIAL = "GPQ_TRIAL"  # "1" in what `gpq doctor` runs on GPUs that it has locked
# a CheckOrder as a JSON object: a run of `gpq check`, which only proves something
ENV_CHECK = "GPQ_CHECK"

# Exit codes with a meaning for jobs that checkpoint on a signal.
EXIT_PREEMPTED = (75, 143)
