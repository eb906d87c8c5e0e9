"""What completion offers, made from the commands by `make completions`: edit those instead.

GRAMMAR: path -> (what its arguments are, {option: (help, what its value is; "" = a flag)}). A kind is jobs, nodes,
users, files, commands (those with a schema), any, or words joined by |; job, node: one.
"""

# fmt: off
# ruff: noqa: E501

GRAMMAR: dict[str, tuple[str, dict[str, tuple[str, str]]]] = {
    "submit": (
        "files",
        {
            "--gpus": ("Fixed number, or for scripts a range.", "any"),
            "-g": ("--gpus", "any"),
            "--gpu-type": ("Part of the GPU's name, such as A100.", "any"),
            "--min-gpu-memory": ("Least memory of each GPU, such as 40G.", "any"),
            "--name": ("", "any"),
            "-n": ("--name", "any"),
            "--tag": ("A label; may be repeated.", "any"),
            "--notify": ("Whom to tell: a target of config.toml, desktop, mailto:ADDRESS, or none; may be repeated.", "any"),
            "--notify-on": ("Of what: start, restart, retry, fail, end.", "any"),
            "--priority": ("Higher goes first.", "any"),
            "--time": ("Limit of the run time, such as 90m or 2h.", "any"),
            "-t": ("--time", "any"),
            "--after": ("Start once these have ended so; commas, and may be repeated.", "jobs"),
            "--begin": ("Start no earlier: 18:00, 'tomorrow 8am', 'fri 18:00', +2h.", "any"),
            "--background": ("Take only GPUs that nobody else wants; leave them when somebody does.", ""),
            "--array": ("A job for each index, such as 0-99; at most N at once. {index} in arguments becomes it.", "any"),
            "--sweep": ("A job for each value, or number of 0..9; brackets hold together. Repeated: all combinations. {NAME} becomes it.", "any"),
            "--sweep-file": ("CSV: a job for each line, names in the first.", "files"),
            "--retries": ("Start again so many times after a failure.", "any"),
            "--requeue-on-lost": ("Start elsewhere after so long a silence of its server, where it then ends itself; 1m at least.", "any"),
            "--rigid": ("Never resize this script.", ""),
            "--preemptible": ("The command checkpoints on a signal and may be stopped.", ""),
            "--signal": ("That signal, such as USR1.", "USR1|USR2|TERM|INT|HUP"),
            "--grace": ("From the signal to the kill.", "any"),
            "--resume-args": ("Added from the second start on, in quotes: --resume auto.", "any"),
            "--done-file": ("The job writes it at its very end: then an exit with 0 after a stop order is its end, too.", "files"),
            "--batch-size": ("Base total batch size, instead of the script's.", "any"),
            "--max-batch-size": ("Largest total batch size.", "any"),
            "--atomic-batch-size": ("Range of the batch on one GPU in one pass.", "any"),
            "--accept": ("A habit that gpq suspects, and that is to count for nothing; may be repeated.", "any"),
            "--env": ("Set a variable, or pass on K; may be repeated.", "any"),
            "-e": ("--env", "any"),
            "--cwd": ("Directory to run in.", "files"),
            "--python": ("Interpreter of the script.", "files"),
            "--setup": ("Run once on each server before the first start there; jobs get what it exports.", "any"),
            "--snapshot": ("Run the code as it is now, whatever is edited later.", ""),
            "--hold": ("Queue it held.", ""),
            "--wait": ("Block until it has ended; exit with its code.", ""),
            "--dry-run": ("Say what would happen; queue nothing.", ""),
            "--json": ("Print JSON only, as the daemon answered.", ""),
        },
    ),
    "status": (
        "jobs",
        {
            "--user": ("Only this user's jobs.", "users"),
            "-u": ("--user", "users"),
            "--state": ("Only jobs in this state; may be repeated.", "pending|held|starting|running|stopping|completed|failed|cancelled|timeout"),
            "-s": ("--state", "pending|held|starting|running|stopping|completed|failed|cancelled|timeout"),
            "--recent": ("How many of the jobs that ended.", "any"),
            "--all": ("All jobs there ever were.", ""),
            "-a": ("--all", ""),
            "--color": ("auto: on a terminal, unless NO_COLOR is set.", "auto|always|never"),
            "--json": ("Print JSON only, as the daemon answered.", ""),
        },
    ),
    "show": (
        "job",
        {
            "--color": ("auto: on a terminal, unless NO_COLOR is set.", "auto|always|never"),
            "--json": ("Print JSON only, as the daemon answered.", ""),
        },
    ),
    "why": (
        "job",
        {
            "--color": ("auto: on a terminal, unless NO_COLOR is set.", "auto|always|never"),
            "--json": ("Print JSON only, as the daemon answered.", ""),
        },
    ),
    "logs": (
        "job",
        {
            "--follow": ("Go on until the job ends.", ""),
            "-f": ("--follow", ""),
            "--lines": ("Only the last N lines.", "any"),
            "-n": ("--lines", "any"),
            "--attempt": ("Only this attempt.", "any"),
            "--node": ("Its name, or its rank in the job.", "nodes"),
            "--raw": ("On a terminal, too, pass on every byte.", ""),
            "--json": ("Print JSON only, as the daemon answered.", ""),
        },
    ),
    "cancel": (
        "jobs",
        {
            "--timeout": ("Wait so long for the proof.", "any"),
            "--yes": ("Do not ask about a name of several jobs.", ""),
            "-y": ("--yes", ""),
            "--json": ("Print JSON only, as the daemon answered.", ""),
        },
    ),
    "hold": (
        "jobs",
        {
            "--json": ("Print JSON only, as the daemon answered.", ""),
        },
    ),
    "release": (
        "jobs",
        {
            "--json": ("Print JSON only, as the daemon answered.", ""),
        },
    ),
    "requeue": (
        "jobs",
        {
            "--json": ("Print JSON only, as the daemon answered.", ""),
        },
    ),
    "edit": (
        "jobs",
        {
            "--name": ("Another name.", "any"),
            "-n": ("--name", "any"),
            "--priority": ("Higher goes first.", "any"),
            "--gpus": ("Of a job that waits or can be resized.", "any"),
            "-g": ("--gpus", "any"),
            "--time": ("Limit of the run time; none: no limit.", "any"),
            "-t": ("--time", "any"),
            "--retries": ("Tries after a failure, in all.", "any"),
            "--tag": ("Add a label; may be repeated.", "any"),
            "--untag": ("Take one away.", "any"),
            "--after": ("Instead of what it waits for; or none.", "jobs"),
            "--begin": ("Start no earlier; now: at once.", "any"),
            "--gpu-type": ("Part of the GPU's name; none: any.", "any"),
            "--min-gpu-memory": ("Least memory of each GPU; none: any.", "any"),
            "--max-batch-size": ("Largest total batch size.", "any"),
            "--background": ("Take only what nobody else wants, or not.", ""),
            "--array-limit": ("How many jobs of the array may run at once; none: all.", "any"),
            "--notify": ("Whom to tell from now on, as for `gpq submit`; none: nobody.", "any"),
            "--notify-on": ("Of what: start, restart, retry, fail, end.", "any"),
            "--accept": ("A suspicion that is to count for nothing; may be repeated; none: all count.", "any"),
            "--json": ("Print JSON only, as the daemon answered.", ""),
        },
    ),
    "wait": (
        "jobs",
        {
            "--timeout": ("Give up then, with exit code 124.", "any"),
            "--json": ("Print JSON only, as the daemon answered.", ""),
        },
    ),
    "nodes list": (
        "nodes",
        {
            "--color": ("auto: on a terminal, unless NO_COLOR is set.", "auto|always|never"),
            "--json": ("Print JSON only, as the daemon answered.", ""),
        },
    ),
    "nodes add": (
        "any",
        {
            "--from-ssh-config": ("Choose from the hosts in ~/.ssh/config.", ""),
            "--name": ("Name of the server in gpq.", "any"),
            "--gpus": ("GPUs to use, by index or UUID: 0,1.", "any"),
            "--slots": ("Use CPU slots instead of GPUs.", "any"),
            "--python": ("Python 3.8 or newer there.", "files"),
            "--port": ("Port of its sshd.", "any"),
            "--address": ("Where other servers reach it.", "any"),
            "--ssh-config": ("Read this file instead of ~/.ssh/config.", "files"),
            "-F": ("--ssh-config", "files"),
            "--yes": ("Ask nothing: accept a new host key as shown, and add all hosts found.", ""),
            "-y": ("--yes", ""),
            "--json": ("Print JSON only, as the daemon answered.", ""),
        },
    ),
    "nodes remove": (
        "node",
        {
            "--force": ("Even while jobs are on it. They keep running, but gpq loses track of them.", ""),
            "--json": ("Print JSON only, as the daemon answered.", ""),
        },
    ),
    "nodes drain": (
        "node",
        {
            "--reason": ("`gpq nodes` shows it, and `gpq why` of jobs that wait for the server.", "any"),
            "--json": ("Print JSON only, as the daemon answered.", ""),
        },
    ),
    "nodes undrain": (
        "node",
        {
            "--json": ("Print JSON only, as the daemon answered.", ""),
        },
    ),
    "nodes reserve": (
        "any",
        {
            "--for": ("User whose jobs may use them. Without it, gpq leaves them alone.", "users"),
            "--from": ("now, 18:00, 'fri 18:00', 'tomorrow 9:00', '2026-11-27 18:00', +2h.", "any"),
            "--until": ("The end, in the same format.", "any"),
            "--for-duration": ("How long, instead of --until: 90m, 2d.", "any"),
            "--json": ("Print JSON only, as the daemon answered.", ""),
        },
    ),
    "nodes unreserve": (
        "any",
        {
            "--json": ("Print JSON only, as the daemon answered.", ""),
        },
    ),
    "yield": (
        "node",
        {
            "--for": ("For this long, or until --end.", "any"),
            "--end": ("Give the server back to gpq.", ""),
            "--json": ("Print JSON only, as the daemon answered.", ""),
        },
    ),
    "top": (
        "jobs",
        {
            "--once": ("Print one frame and end.", ""),
            "--interval": ("Between two looks, at least 0.1.", "any"),
            "--color": ("auto: on a terminal, unless NO_COLOR is set.", "auto|always|never"),
            "--json": ("Print JSON only, as the daemon answered.", ""),
        },
    ),
    "notify list": (
        "",
        {
            "--json": ("Print JSON only, as the daemon answered.", ""),
        },
    ),
    "notify test": (
        "any",
        {
            "--json": ("Print JSON only, as the daemon answered.", ""),
        },
    ),
    "history": (
        "jobs",
        {
            "--user": ("Only this user's jobs.", "users"),
            "-u": ("--user", "users"),
            "--state": ("Only jobs that ended so; may be repeated.", "completed|failed|cancelled|timeout"),
            "-s": ("--state", "completed|failed|cancelled|timeout"),
            "--since": ("Ended since: 7d, yesterday, 'mon 9:00', 2026-11-01.", "any"),
            "--until": ("Ended before, written likewise.", "any"),
            "--number": ("The latest N.", "any"),
            "-n": ("--number", "any"),
            "--csv": ("Print a CSV line for each job.", ""),
            "--color": ("auto: on a terminal, unless NO_COLOR is set.", "auto|always|never"),
            "--json": ("Print JSON only, as the daemon answered.", ""),
        },
    ),
    "report": (
        "",
        {
            "--by": ("A row for each of these.", "user|job|server|day"),
            "--since": ("From then on: 7d, yesterday, 'mon 9:00', 2026-11-01.", "any"),
            "--until": ("Up to then, written likewise.", "any"),
            "--csv": ("Print a CSV line for each row.", ""),
            "--html": ("Write one page with plots, which needs no network.", "files"),
            "--color": ("auto: on a terminal, unless NO_COLOR is set.", "auto|always|never"),
            "--json": ("Print JSON only, as the daemon answered.", ""),
        },
    ),
    "daemon start": (
        "",
        {
            "--metrics": ("Serve Prometheus metrics there until this daemon stops. To serve them always, set `metrics` in config.toml.", "any"),
        },
    ),
    "daemon stop": (
        "",
        {
        },
    ),
    "daemon status": (
        "",
        {
            "--json": ("Print JSON only, as the daemon answered.", ""),
        },
    ),
    "daemon logs": (
        "",
        {
            "--lines": ("Show this many of the last lines.", "any"),
            "-n": ("--lines", "any"),
            "--follow": ("Keep printing new lines until Ctrl-C.", ""),
            "-f": ("--follow", ""),
        },
    ),
    "check": (
        "files",
        {
            "--steps": ("Optimizer steps in each shape, 4 or more.", "any"),
            "--timeout": ("Give up after this long, with exit code 124.", "any"),
            "--python": ("Interpreter.", "files"),
            "--gpu": ("On two GPUs of this machine, refused where there are fewer; else on its CPUs.", ""),
            "--isolated": ("A fresh interpreter for every replica, slower: where the script sets variables that torch reads.", ""),
            "--last": ("Only print the verdict that is kept for the script as it is, with these arguments.", ""),
            "--color": ("auto: on a terminal, unless NO_COLOR is set.", "auto|always|never"),
            "--json": ("Print JSON only.", ""),
        },
    ),
    "doctor": (
        "nodes",
        {
            "--gpu": ("Test the GPUs instead: driver, CUDA, small trainings. Takes 2 to 10 minutes.", ""),
            "--python": ("Python that runs your scripts.", "files"),
            "--color": ("auto: on a terminal, unless NO_COLOR is set.", "auto|always|never"),
            "--json": ("Print JSON only, as the daemon answered.", ""),
        },
    ),
    "config show": (
        "",
        {
            "--json": ("Print JSON only, as the daemon answered.", ""),
        },
    ),
    "config check": (
        "files",
        {
            "--json": ("Print JSON only, as the daemon answered.", ""),
        },
    ),
    "config path": (
        "",
        {
            "--json": ("Print JSON only, as the daemon answered.", ""),
        },
    ),
    "config library": (
        "",
        {
            "--json": ("Print JSON only, as the daemon answered.", ""),
        },
    ),
    "config policies": (
        "",
        {
            "--json": ("Print JSON only, as the daemon answered.", ""),
        },
    ),
    "simulate": (
        "files",
        {
            "--traces": ("Folder of measurements, one folder for each application.", "files"),
            "--nodes": ("Cluster: 16x4, or 6x4:t4,2x8:a100. Repeat it to compare.", "any"),
            "--policy": ("Policies to compare.", "goodput|pollux|sia|optimus|slaq|tiresias|themis|gavel|gavel-max-min|gavel-ftf|gavel-makespan|srtf|backfill|fifo"),
            "--interval": ("Between two rounds.", "any"),
            "--restart": ("Cost of each start and move.", "any"),
            "--interference": ("Slowdown of jobs over several nodes that share a node.", "any"),
            "--known-length": ("Jobs declare how long they are.", ""),
            "--priors": ("Jobs start from profiles of earlier ones of the same program.", ""),
            "--events": ("Rounds also when a job arrives, ends or first reports.", ""),
            "--noise": ("Relative error of what jobs measure.", "any"),
            "--seed": ("Of all chance; a list runs each.", "any"),
            "--jobs-parallel": ("Processes that simulate.", "any"),
            "--rules": ("Whose charges: those of Pollux's or Sia's simulator.", "osdi21|sia"),
            "--set": ("A switch of the policy, as use_length=off; may be repeated.", "any"),
            "--history": ("Replay your own jobs from the store instead of a file.", ""),
            "--since": ("With --history: only jobs submitted since, as 30d.", "any"),
            "--plot": ("Draw completion times, fairness and GPUs: FILE.svg or FILE.png.", "files"),
            "--csv": ("Print one CSV line for each run.", ""),
            "--color": ("auto: on a terminal, unless NO_COLOR is set.", "auto|always|never"),
            "--json": ("Print JSON only.", ""),
        },
    ),
    "demo": (
        "",
        {
            "--policy": ("Policy of the daemon. `gpq config policies` lists them.", "goodput|pollux|sia|optimus|slaq|tiresias|themis|gavel|gavel-max-min|gavel-ftf|gavel-makespan|srtf|backfill|fifo"),
            "--home": ("Keep state and logs there. By default they stay only if the demo fails.", "any"),
            "--timeout": ("Give up after this long, with exit code 124.", "any"),
            "--color": ("auto: on a terminal, unless NO_COLOR is set.", "auto|always|never"),
            "--json": ("Print JSON only, as the daemon answered.", ""),
        },
    ),
    "import slurm": (
        "files",
        {
            "--submit": ("Queue them; without it they are shown only.", ""),
            "--hold": ("Queue them held: `gpq release` lets them run.", ""),
            "--json": ("Print JSON only, as the daemon answered.", ""),
        },
    ),
    "import ts": (
        "",
        {
            "--submit": ("Queue them; without it they are shown only.", ""),
            "--hold": ("Queue them held: `gpq release` lets them run.", ""),
            "--json": ("Print JSON only, as the daemon answered.", ""),
        },
    ),
    "schema": (
        "commands",
        {
        },
    ),
    "completion": (
        "bash|zsh|fish",
        {
        },
    ),
}
