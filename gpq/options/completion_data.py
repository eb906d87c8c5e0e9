"""What completion offers. Made from the commands by `make completions`, so edit those instead.

GRAMMAR: path -> (kind of arguments, {option: (help, kind of value, "" for a flag)}). A kind is jobs,
nodes, users, files, commands (with a schema), any, words joined by |, or one job, node,
member or job of a member.

COMMANDS: command -> what `gpq --help` says of it.
"""

# fmt: off
# ruff: noqa: E501

COMMANDS: dict[str, str] = {
    "submit": "queue a job",
    "run": "run a command on a queued GPU as if it ran here",
    "shell": "open a shell on a queued GPU",
    "attach": "connect to the streams of a job of `gpq run`",
    "status": "show the queue: which job has which GPUs, and why others wait",
    "show": "show everything about one job",
    "why": "explain why a job waits, or why it has these GPUs",
    "logs": "show what a job printed",
    "cancel": "stop jobs permanently, and return when every process is gone",
    "hold": "keep jobs from starting until you release them",
    "release": "let held jobs start",
    "requeue": "queue jobs again",
    "edit": "change jobs",
    "wait": "wait until jobs have ended, and exit with the job's code",
    "nodes": "show and manage the servers and their GPUs",
    "yield": "get your own server back from gpq",
    "top": "live view of GPUs, jobs, goodput, fairness and changes",
    "notify": "list and test the targets of notifications",
    "history": "show jobs that ended: waits, GPU hours, goodput hours, restarts",
    "report": "report GPU hours, waits, restarts and fairness",
    "team": "one queue with colleagues: make it, show it, and say who is in it",
    "join": "join the queue of a team",
    "leave": "leave the queue of your team",
    "daemon": "start, stop and inspect the daemon",
    "check": "prove on your own script that gpq does not change what it trains",
    "doctor": "check this machine and the servers, and say how to fix problems",
    "config": "show and check the configuration",
    "demo": "watch three real training jobs on two small CPU servers",
    "import": "import jobs from Slurm scripts or from task-spooler",
    "schema": "print the JSON Schema of a command's --json output",
    "completion": "print the completion script of a shell",
    "simulate": "compare policies on a workload or on your own jobs",
}

GRAMMAR: dict[str, tuple[str, dict[str, tuple[str, str]]]] = {
    "submit": (
        "files",
        {
            "--gpus": ("A fixed number, or a range for scripts.", "any"),
            "-g": ("--gpus", "any"),
            "--gpu-type": ("Part of the GPU's name, such as A100.", "any"),
            "--min-gpu-memory": ("Minimum memory of each GPU, such as 40G.", "any"),
            "--name": ("Name of the job.", "any"),
            "-n": ("--name", "any"),
            "--tag": ("Add a label. Can be repeated.", "any"),
            "--notify": ("Where to send notifications: a target of config.toml, desktop, mailto:ADDRESS or none. Can be repeated.", "any"),
            "--notify-on": ("When to notify: start, restart, retry, fail, end.", "any"),
            "--priority": ("Higher priority starts first.", "any"),
            "--time": ("Stop the job after this run time, such as 90m or 2h.", "any"),
            "-t": ("--time", "any"),
            "--after": ("Start after these jobs have ended this way. Separate several by commas, or repeat the option.", "jobs"),
            "--begin": ("Do not start before: 18:00, 'tomorrow 8am', 'fri 18:00', +2h.", "any"),
            "--background": ("Use only GPUs that nobody else wants, and leave them when somebody does.", ""),
            "--array": ("One job per index, such as 0-99, at most N at once. {index} in the arguments becomes the index.", "any"),
            "--sweep": ("One job per value, or per number of 0..9. Brackets keep a value with commas together. Repeat it for all combinations. {NAME} in the arguments becomes the value.", "any"),
            "--sweep-file": ("CSV file with one job per line, and the names in the first line.", "files"),
            "--retries": ("Restart up to N times after a failure.", "any"),
            "--requeue-on-lost": ("If the server is unreachable this long, stop the job there and restart it elsewhere. At least 1m.", "any"),
            "--rigid": ("Never resize this script.", ""),
            "--preemptible": ("The command saves a checkpoint on a signal, so gpq may stop and restart it.", ""),
            "--signal": ("Signal for --preemptible, such as USR1.", "USR1|USR2|TERM|INT|HUP"),
            "--grace": ("Time to save after the signal, before TERM and KILL.", "any"),
            "--resume-args": ("Arguments to add from the second start on, in quotes: '--resume auto'.", "any"),
            "--done-file": ("File that the job writes when it is done. With it, exit code 0 after a stop means completed.", "files"),
            "--batch-size": ("Base batch size, instead of the script's.", "any"),
            "--max-batch-size": ("Largest batch size.", "any"),
            "--atomic-batch-size": ("Range of the micro-batch size.", "any"),
            "--launcher": ("Start the replicas with `torchrun`, for a script that uses its API.", "any"),
            "--accept": ("Ignore a habit that gpq suspects. Can be repeated.", "any"),
            "--env": ("Set a variable, or pass on K from your shell. Can be repeated.", "any"),
            "-e": ("--env", "any"),
            "--cwd": ("Directory to run in.", "files"),
            "--stdin": ("File for the job's stdin, or - for that of this command. gpq keeps a copy.", "files"),
            "--python": ("Python for the script.", "files"),
            "--setup": ("Run this once per server before the first start. Jobs get the variables it exports.", "any"),
            "--snapshot": ("Run the code as it is now, even if you edit it later.", ""),
            "--check": ("Run `gpq check` on the script first, unless its verdict is known. Nothing is queued if the script fails.", ""),
            "--no-check": ("Run no `gpq check` first, whatever config.toml says.", ""),
            "--hold": ("Queue the job held.", ""),
            "--wait": ("Wait until the job has ended, and exit with its code.", ""),
            "--dry-run": ("Say what would happen, without queueing anything.", ""),
            "--json": ("Print only JSON.", ""),
        },
    ),
    "run": (
        "commands",
        {
            "--pty": ("With a terminal or with pipes.", ""),
            "--gpus": ("How many GPUs.", "any"),
            "-g": ("--gpus", "any"),
            "--gpu-type": ("Part of the GPU's name, such as A100.", "any"),
            "--min-gpu-memory": ("Minimum memory of each GPU, such as 40G.", "any"),
            "--name": ("Name of the job.", "any"),
            "-n": ("--name", "any"),
            "--tag": ("Add a label. Can be repeated.", "any"),
            "--priority": ("Higher priority starts first.", "any"),
            "--time": ("Stop the job after this run time, such as 90m or 2h.", "any"),
            "-t": ("--time", "any"),
            "--after": ("Start after these jobs have ended this way. Separate several by commas, or repeat the option.", "jobs"),
            "--begin": ("Do not start before: 18:00, 'tomorrow 8am', 'fri 18:00', +2h.", "any"),
            "--notify": ("Where to send notifications: a target of config.toml, desktop, mailto:ADDRESS or none. Can be repeated.", "any"),
            "--notify-on": ("When to notify: start, restart, retry, fail, end.", "any"),
            "--env": ("Set a variable, or pass on K from your shell. Can be repeated.", "any"),
            "-e": ("--env", "any"),
            "--cwd": ("Directory to run in.", "files"),
            "--setup": ("Run this once per server before the first start. Jobs get the variables it exports.", "any"),
            "--snapshot": ("Run the code as it is now, even if you edit it later.", ""),
        },
    ),
    "shell": (
        "",
        {
            "--gpus": ("How many GPUs.", "any"),
            "-g": ("--gpus", "any"),
            "--gpu-type": ("Part of the GPU's name, such as A100.", "any"),
            "--min-gpu-memory": ("Minimum memory of each GPU, such as 40G.", "any"),
            "--name": ("Name of the job.", "any"),
            "-n": ("--name", "any"),
            "--tag": ("Add a label. Can be repeated.", "any"),
            "--priority": ("Higher priority starts first.", "any"),
            "--time": ("Stop the job after this run time, such as 90m or 2h.", "any"),
            "-t": ("--time", "any"),
            "--after": ("Start after these jobs have ended this way. Separate several by commas, or repeat the option.", "jobs"),
            "--begin": ("Do not start before: 18:00, 'tomorrow 8am', 'fri 18:00', +2h.", "any"),
            "--notify": ("Where to send notifications: a target of config.toml, desktop, mailto:ADDRESS or none. Can be repeated.", "any"),
            "--notify-on": ("When to notify: start, restart, retry, fail, end.", "any"),
            "--env": ("Set a variable, or pass on K from your shell. Can be repeated.", "any"),
            "-e": ("--env", "any"),
            "--cwd": ("Directory to run in.", "files"),
            "--setup": ("Run this once per server before the first start. Jobs get the variables it exports.", "any"),
            "--snapshot": ("Run the code as it is now, even if you edit it later.", ""),
        },
    ),
    "attach": (
        "job",
        {
        },
    ),
    "status": (
        "jobs",
        {
            "--user": ("Only this user's jobs.", "users"),
            "-u": ("--user", "users"),
            "--state": ("Only jobs in this state. Can be repeated.", "pending|held|starting|running|stopping|completed|failed|cancelled|timeout"),
            "-s": ("--state", "pending|held|starting|running|stopping|completed|failed|cancelled|timeout"),
            "--recent": ("How many ended jobs to show.", "any"),
            "--all": ("Show the latest 1,000 that ended. With --json: all.", ""),
            "-a": ("--all", ""),
            "--team": ("Show the jobs of all members of your team.", ""),
            "--color": ("auto: colours on a terminal, unless NO_COLOR is set.", "auto|always|never"),
            "--json": ("Print only JSON.", ""),
        },
    ),
    "show": (
        "job",
        {
            "--color": ("auto: colours on a terminal, unless NO_COLOR is set.", "auto|always|never"),
            "--json": ("Print only JSON.", ""),
        },
    ),
    "why": (
        "job",
        {
            "--color": ("auto: colours on a terminal, unless NO_COLOR is set.", "auto|always|never"),
            "--json": ("Print only JSON.", ""),
        },
    ),
    "logs": (
        "job",
        {
            "--follow": ("Keep printing until the job ends.", ""),
            "-f": ("--follow", ""),
            "--lines": ("Only the last N lines.", "any"),
            "-n": ("--lines", "any"),
            "--attempt": ("Only this attempt.", "any"),
            "--node": ("Name of a server, or its number in the job.", "nodes"),
            "--raw": ("Print every byte as it is, also on a terminal.", ""),
            "--json": ("Print only JSON.", ""),
        },
    ),
    "cancel": (
        "jobs",
        {
            "--timeout": ("Wait at most this long.", "any"),
            "--yes": ("Do not ask when a name matches several jobs.", ""),
            "-y": ("--yes", ""),
            "--json": ("Print only JSON.", ""),
        },
    ),
    "hold": (
        "jobs",
        {
            "--json": ("Print only JSON.", ""),
        },
    ),
    "release": (
        "jobs",
        {
            "--json": ("Print only JSON.", ""),
        },
    ),
    "requeue": (
        "jobs",
        {
            "--state": ("Only jobs in this state. Can be repeated.", "pending|held|starting|running|stopping|completed|failed|cancelled|timeout"),
            "-s": ("--state", "pending|held|starting|running|stopping|completed|failed|cancelled|timeout"),
            "--fresh": ("Start jobs that have ended from the beginning, or from their checkpoints.", ""),
            "--json": ("Print only JSON.", ""),
        },
    ),
    "edit": (
        "jobs",
        {
            "--name": ("New name.", "any"),
            "-n": ("--name", "any"),
            "--priority": ("Higher priority starts first.", "any"),
            "--gpus": ("Only for jobs that wait or can be resized.", "any"),
            "-g": ("--gpus", "any"),
            "--time": ("Limit of the run time, or none.", "any"),
            "-t": ("--time", "any"),
            "--retries": ("Restarts after a failure, in total.", "any"),
            "--tag": ("Add a label. Can be repeated.", "any"),
            "--untag": ("Remove a label. Can be repeated.", "any"),
            "--after": ("Wait for these jobs instead, or none.", "jobs"),
            "--begin": ("Do not start before this time, or now.", "any"),
            "--gpu-type": ("Part of the GPU's name, or none.", "any"),
            "--min-gpu-memory": ("Minimum memory of each GPU, or none.", "any"),
            "--max-batch-size": ("Largest batch size.", "any"),
            "--background": ("Use only GPUs that nobody else wants, or not.", ""),
            "--array-limit": ("How many jobs of the array may run at once, or none for no limit.", "any"),
            "--notify": ("Where to send notifications from now on, as in `gpq submit`, or none.", "any"),
            "--notify-on": ("When to notify: start, restart, retry, fail, end.", "any"),
            "--accept": ("Ignore a habit that gpq suspects, or none to ignore none. Can be repeated.", "any"),
            "--json": ("Print only JSON.", ""),
        },
    ),
    "wait": (
        "jobs",
        {
            "--timeout": ("Stop waiting after this long, with exit code 124.", "any"),
            "--json": ("Print only JSON.", ""),
        },
    ),
    "nodes list": (
        "nodes",
        {
            "--team": ("Show the servers of your team.", ""),
            "--color": ("auto: colours on a terminal, unless NO_COLOR is set.", "auto|always|never"),
            "--json": ("Print only JSON.", ""),
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
            "--json": ("Print only JSON.", ""),
        },
    ),
    "nodes remove": (
        "node",
        {
            "--force": ("Even while jobs are on it. They keep running, but gpq loses track of them.", ""),
            "--json": ("Print only JSON.", ""),
        },
    ),
    "nodes drain": (
        "node",
        {
            "--reason": ("`gpq nodes` shows it, and `gpq why` of jobs that wait for the server.", "any"),
            "--json": ("Print only JSON.", ""),
        },
    ),
    "nodes undrain": (
        "node",
        {
            "--json": ("Print only JSON.", ""),
        },
    ),
    "nodes reserve": (
        "any",
        {
            "--for": ("User whose jobs may use them. Without it, gpq leaves them alone.", "users"),
            "--from": ("now, 18:00, 'fri 18:00', 'tomorrow 9:00', '2026-11-27 18:00', +2h.", "any"),
            "--until": ("The end, in the same format.", "any"),
            "--for-duration": ("How long, instead of --until: 90m, 2d.", "any"),
            "--json": ("Print only JSON.", ""),
        },
    ),
    "nodes unreserve": (
        "any",
        {
            "--json": ("Print only JSON.", ""),
        },
    ),
    "nodes clean": (
        "",
        {
            "--older": ("Jobs that ended longer ago than this, such as 90d.", "any"),
            "--yes": ("Remove them. Without it, gpq only says how many.", ""),
            "-y": ("--yes", ""),
            "--json": ("Print only JSON.", ""),
        },
    ),
    "yield": (
        "node",
        {
            "--for": ("For this long, or until --end.", "any"),
            "--end": ("Give the server back to gpq.", ""),
            "--json": ("Print only JSON.", ""),
        },
    ),
    "top": (
        "jobs",
        {
            "--once": ("Print the view once and exit.", ""),
            "--interval": ("Time between two updates, at least 0.1 (1 with --team).", "any"),
            "--team": ("Watch the members of your team and the jobs of all.", ""),
            "--color": ("auto: colours on a terminal, unless NO_COLOR is set.", "auto|always|never"),
            "--json": ("Print only JSON.", ""),
        },
    ),
    "notify list": (
        "",
        {
            "--json": ("Print only JSON.", ""),
        },
    ),
    "notify test": (
        "any",
        {
            "--json": ("Print only JSON.", ""),
        },
    ),
    "history": (
        "jobs",
        {
            "--user": ("Only this user's jobs.", "users"),
            "-u": ("--user", "users"),
            "--state": ("Only jobs that ended in this state. Can be repeated.", "completed|failed|cancelled|timeout"),
            "-s": ("--state", "completed|failed|cancelled|timeout"),
            "--since": ("Only jobs that ended since: 7d, yesterday, 'mon 9:00', 2026-11-01.", "any"),
            "--until": ("Only jobs that ended before, in the same formats.", "any"),
            "--number": ("Show the last N.", "any"),
            "-n": ("--number", "any"),
            "--csv": ("Print one CSV line per job.", ""),
            "--color": ("auto: colours on a terminal, unless NO_COLOR is set.", "auto|always|never"),
            "--json": ("Print only JSON.", ""),
        },
    ),
    "report": (
        "",
        {
            "--by": ("One row for each.", "user|job|server|day"),
            "--since": ("Start of the report: 7d, yesterday, 'mon 9:00', 2026-11-01.", "any"),
            "--until": ("End of the report, in the same formats.", "any"),
            "--csv": ("Print one CSV line per row.", ""),
            "--html": ("Write a page with plots. It needs no network.", "files"),
            "--team": ("Report the GPU hours of the members of your team.", ""),
            "--color": ("auto: colours on a terminal, unless NO_COLOR is set.", "auto|always|never"),
            "--json": ("Print only JSON.", ""),
        },
    ),
    "team init": (
        "any",
        {
            "--group": ("Users of this Unix group may join.", "any"),
        },
    ),
    "team show": (
        "",
        {
            "--color": ("auto: colours on a terminal, unless NO_COLOR is set.", "auto|always|never"),
            "--json": ("Print only JSON.", ""),
        },
    ),
    "team add": (
        "any",
        {
        },
    ),
    "team remove": (
        "member",
        {
        },
    ),
    "team share": (
        "member",
        {
        },
    ),
    "team pause": (
        "member",
        {
        },
    ),
    "team resume": (
        "member",
        {
        },
    ),
    "team admin": (
        "member",
        {
        },
    ),
    "team recall": (
        "member/job",
        {
        },
    ),
    "team audit": (
        "",
        {
            "--lines": ("How many, the newest.", "any"),
            "-n": ("--lines", "any"),
            "--color": ("auto: colours on a terminal, unless NO_COLOR is set.", "auto|always|never"),
            "--json": ("Print only JSON.", ""),
        },
    ),
    "team check": (
        "",
        {
        },
    ),
    "team link": (
        "any",
        {
            "--uid": ("User who decides, if there are several.", "any"),
        },
    ),
    "join": (
        "any",
        {
            "--uid": ("User who decides, if there are several.", "any"),
            "--no-servers": ("Add none of the team's servers.", ""),
        },
    ),
    "leave": (
        "",
        {
            "--end": ("End the team, as its last member.", ""),
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
            "--json": ("Print only JSON.", ""),
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
            "--steps": ("Optimizer steps per shape, at least 4.", "any"),
            "--timeout": ("Give up after this long, with exit code 124.", "any"),
            "--python": ("Python for the script.", "files"),
            "--gpu": ("Use two GPUs of this machine instead of its CPUs. Needs at least two GPUs.", ""),
            "--isolated": ("Start a new Python for every replica, which is slower. Needed if the script sets variables that torch reads.", ""),
            "--last": ("Only print the saved verdict for this script and these arguments.", ""),
            "--color": ("auto: colours on a terminal, unless NO_COLOR is set.", "auto|always|never"),
            "--json": ("Print only JSON.", ""),
        },
    ),
    "doctor": (
        "nodes",
        {
            "--gpu": ("Test the GPUs instead: what the driver says, and whether CUDA can use them.", ""),
            "--python": ("Python that runs your scripts.", "files"),
            "--color": ("auto: colours on a terminal, unless NO_COLOR is set.", "auto|always|never"),
            "--json": ("Print only JSON.", ""),
        },
    ),
    "config show": (
        "",
        {
            "--json": ("Print only JSON.", ""),
        },
    ),
    "config check": (
        "files",
        {
            "--json": ("Print only JSON.", ""),
        },
    ),
    "config path": (
        "",
        {
            "--json": ("Print only JSON.", ""),
        },
    ),
    "config library": (
        "",
        {
            "--json": ("Print only JSON.", ""),
        },
    ),
    "config policies": (
        "",
        {
            "--json": ("Print only JSON.", ""),
        },
    ),
    "demo": (
        "",
        {
            "--policy": ("Policy of the daemon. `gpq config policies` lists them.", "goodput|srtf|backfill|fifo|gavel|gavel-ftf|gavel-makespan|gavel-max-min|optimus|pollux|sia|slaq|themis|tiresias"),
            "--home": ("Keep state and logs there. By default they stay only if the demo fails.", "any"),
            "--timeout": ("Give up after this long, with exit code 124.", "any"),
            "--team": ("Show instead how three members of a team share the servers.", ""),
            "--color": ("auto: colours on a terminal, unless NO_COLOR is set.", "auto|always|never"),
            "--json": ("Print only JSON.", ""),
        },
    ),
    "import slurm": (
        "files",
        {
            "--submit": ("Queue the jobs instead of only showing them.", ""),
            "--hold": ("Queue the jobs held. `gpq release` lets them start.", ""),
            "--json": ("Print only JSON.", ""),
        },
    ),
    "import ts": (
        "",
        {
            "--submit": ("Queue the jobs instead of only showing them.", ""),
            "--hold": ("Queue the jobs held. `gpq release` lets them start.", ""),
            "--json": ("Print only JSON.", ""),
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
    "simulate": (
        "files",
        {
            "--traces": ("Folder of measurements, with one folder per application.", "files"),
            "--nodes": ("Cluster, such as 16x4 or 6x4:t4,2x8:a100. Repeat it to compare.", "any"),
            "--policy": ("Policies to compare.", "goodput|srtf|backfill|fifo|gavel|gavel-ftf|gavel-makespan|gavel-max-min|optimus|pollux|sia|slaq|themis|tiresias"),
            "--interval": ("Time between two rounds.", "any"),
            "--restart": ("Cost of each start and move.", "any"),
            "--known-length": ("Jobs say how long they are.", ""),
            "--priors": ("Start jobs with profiles of earlier jobs of the same program.", ""),
            "--events": ("Run a round also when a job arrives, ends or first reports.", ""),
            "--noise": ("Relative error of the jobs' measurements.", "any"),
            "--seed": ("Random seed. With a list, run each.", "any"),
            "--jobs-parallel": ("Number of processes.", "any"),
            "--rules": ("Use the costs of the simulator of Pollux (osdi21) or Sia.", "osdi21|sia"),
            "--set": ("A setting of the policy, such as fairness_power=0. Can be repeated.", "any"),
            "--history": ("Replay your own jobs instead of a file.", ""),
            "--since": ("With --history: only jobs submitted in this time, such as 30d.", "any"),
            "--members": ("Deal the jobs of a file in turn to N members, member-1 and so on.", "any"),
            "--lie": ("What the jobs of a member report or ask untruly: speed, superlinear, noise, length, priority, age or jobs. Can be repeated.", "any"),
            "--plot": ("Plot completion times, fairness and GPUs to FILE.svg or FILE.png.", "files"),
            "--csv": ("Print one CSV line per run.", ""),
            "--color": ("auto: colours on a terminal, unless NO_COLOR is set.", "auto|always|never"),
            "--json": ("Print only JSON.", ""),
        },
    ),
}
