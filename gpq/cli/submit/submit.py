"""`gpq submit` with its help. Plain calls never come here: `gpq.cli.submit.submit_fast` reads their
options without typer."""

from __future__ import annotations

from typing import Any

import typer

from gpq.cli.shared import submit_options
from gpq.cli.shared.typer_app import HELP, Command, Json, frame
from gpq.cli.submit import submit_fast
from gpq.options import submit_request
from gpq.options.directives import sbatch

app = frame()


class Submission(Command):
    """Takes flags of sbatch out, and remembers whether the words stood after `--`: typer itself
    drops it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        pairs: list[sbatch.Pair] = []
        given = submit_request.plain(args, pairs)
        rest = super().parse_args(ctx, list(given))
        words = ctx.params.get("words") or []
        ctx.obj = len(given) > len(words) and given[len(given) - len(words) - 1] == "--", pairs
        return rest


@app.command(cls=Submission, context_settings={**HELP, "allow_interspersed_args": False})
def submit(
    ctx: typer.Context,
    words: submit_options.Words = None,
    gpus: submit_options.Gpus = "",
    gpu_type: submit_options.GpuType = "",
    min_gpu_memory: submit_options.MinGpuMemory = "",
    name: submit_options.Name = "",
    tag: submit_options.Tag = None,
    notify: submit_options.Notify = None,
    notify_on: submit_options.NotifyOn = "",
    priority: submit_options.Priority = 0,
    time: submit_options.Time = "",
    after: submit_options.After = None,
    begin: submit_options.Begin = "",
    background: submit_options.Background = False,
    array: submit_options.Array = "",
    sweep: submit_options.Sweep = None,
    sweep_file: submit_options.SweepFile = "",
    retries: submit_options.Retries = 0,
    requeue_on_lost: submit_options.RequeueOnLost = "",
    rigid: submit_options.Rigid = False,
    preemptible: submit_options.Preemptible = False,
    signal: submit_options.Signal = "",
    grace: submit_options.Grace = "",
    resume_args: submit_options.ResumeArgs = "",
    done_file: submit_options.DoneFile = "",
    batch_size: submit_options.BatchSize = None,
    max_batch_size: submit_options.MaxBatchSize = None,
    atomic_batch_size: submit_options.AtomicBatchSize = "",
    accept: submit_options.Accept = None,
    env: submit_options.Env = None,
    cwd: submit_options.Cwd = "",
    python: submit_options.Python = "",
    setup: submit_options.Setup = "",
    snapshot: submit_options.Snapshot = False,
    hold: submit_options.Hold = False,
    wait: submit_options.Wait = False,
    dry_run: submit_options.DryRun = False,
    json: Json = False,
) -> int:
    """Queue a training script, or after `--` a command as it is.

    A script that uses the training library gets as many GPUs as pay off, and more or fewer while it
    runs. A command gets a fixed number of GPUs and is never moved, unless --preemptible. A shell
    script is such a command; `#GPQ` lines at its head are options, and so are `#SBATCH` lines and
    the usual flags of sbatch (-J, -G, --gres, -D, --wrap, ...), as far as they mean something here.

    \b
    Example:
      gpq submit --gpus 1-8 train.py --epochs 10
      gpq submit --gpus 2 --time 2h -- ./run.sh big
      gpq submit job.sh
      gpq submit --setup "source ~/venvs/new/bin/activate" train.py
      gpq submit --snapshot train.py
      gpq submit --after 42 --begin "tomorrow 8am" evaluate.py
      gpq submit --sweep lr=1e-3,1e-2 --sweep seed=0..4 --array %4 train.py --lr {lr} --seed {seed}
      gpq submit --notify desktop --notify-on fail,end train.py
      gpq submit --preemptible --signal USR1 --resume-args "--resume auto" -- python old.py
      gpq submit --preemptible --done-file out/model.safetensors -- python finetune.py
    """
    told = [
        name
        for name in ctx.params
        if getattr(ctx.get_parameter_source(name), "name", "") == "COMMANDLINE"
    ]
    fields = {
        submit_request.LISTS.get(name, name): ctx.params[name] for name in told if name != "words"
    }
    return submit_fast.run(submit_request.Parsed(fields, list(words or []), *ctx.obj))
