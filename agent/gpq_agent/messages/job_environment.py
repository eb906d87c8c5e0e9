"""Variables of a job's processes, and exit codes that have a meaning for gpq."""

ENV_JOB = "GPQ_JOB_ID"
ENV_ATTEMPT = "GPQ_ATTEMPT"  # "<attempt number>"
# "<spool id>:<job>.<attempt>". Every process of the tree inherits it, so that gpq finds escapees
ENV_MARK = "GPQ_MARK"
# The mark of an interpreter that waits for an attempt. It leaves room for the mark of that attempt
STANDBY_MARK = "standby:" + "-" * 128
AUDIT_INIT = "gpq.init"  # the audit event of Python with which `gpq.init` begins
ENV_RUN_DIR = "GPQ_RUN_DIR"  # the attempt's directory
# in it, where the replicas meet if all are on this server: the beginning of the names of files
ENV_MEETING = "GPQ_MEETING"
ENV_CHECKPOINT_DIR = "GPQ_CHECKPOINT_DIR"  # the job's own directory, the same for all its attempts
ENV_RESUME = "GPQ_RESUME"  # "1" from the second attempt on
ENV_DONE_FILE = "GPQ_DONE_FILE"  # the order's `done_file`, absolute
ENV_CORES = "GPQ_CORES"  # cores by local rank: "0,1;2,3" (CPU slots only)
# a JSON object: variables that gpq chose for this server. Submissions from within the job ignore
# them
ENV_DEFAULTS = "GPQ_DEFAULTS"
ENV_DEVICES = "GPQ_DEVICES"  # device ids of this server, comma-separated
# what a script wrote and removed, in the folder of a shape that gpq checks
CHECK_FILES = "files"
CHECK_WRITTEN = "written"  # in it: what a script wrote, by its whole path
SIDE_EFFECT = (
    "side_effect"  # in a report: a notice about what a script does outside of its training
)
# PYTHONHASHSEED of every process of a job, so that sets keep their order over restarts
HASH_SEED = "0"
# codes of habits that the user accepts, comma-separated
ENV_ACCEPTED = "GPQ_ACCEPTED"
ENV_PROOF = "GPQ_PROOF"  # a Proof as a JSON object
ENV_TRIAL = "GPQ_TRIAL"  # "1" for what `gpq doctor` runs on GPUs that it has locked
# a CheckOrder as a JSON object: this process runs for `gpq check`
ENV_CHECK = "GPQ_CHECK"

# Exit codes of jobs that saved a checkpoint on a signal.
EXIT_PREEMPTED = (75, 143)
