"""`gpq submit` with its help. Plain calls never come here: `gpq.cli.submit.queueing` reads their options without typer."""

from __future__ import annotations

from typing import Any

import typer

from gpq.cli.shared import wishes
from gpq.cli.shared.frame import HELP, Command, Json, frame
from gpq.cli.submit import queueing
from gpq.options import asking
from gpq.options.directives import sbatch

app = frame()


class Submission(Command):
    """Takes flags of sbatch out, and remembers whether the words stood after `--`: typer itself drops it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        pairs: list[sbatch.Pair] = []
        given = asking.plain(args, pairs)
        rest = super().parse_args(ctx, list(given))
        words = ctx.params.get("words") or []
        ctx.obj = len(given) > len(words) and given[len(given) - len(words) - 1] == "--", pairs
        return rest


@app.command(cls=Submission, context_settings={**HELP, "allow_interspersed_args": False})
def submit(
    ctx: typer.Context,
    words: wishes.Words = None,
    gpus: wishes.Gpus = "",
    gpu_type: wishes.GpuType = "",
    min_gpu_memory: wishes.MinGpuMemory = "",
    name: wishes.Name = "",
    tag: wishes.Tag = None,
    notify: wishes.Notify = None,
    notify_on: wishes.NotifyOn = "",
    priority: wishes.Priority = 0,
    time: wishes.Time = "",
    after: wishes.After = None,
    begin: wishes.Begin = "",
    background: wishes.Background = False,
    array: wishes.Array = "",
    sweep: wishes.Sweep = None,
    sweep_file: wishes.SweepFile = "",
    retries: wishes.Retries = 0,
    requeue_on_lost: wishes.RequeueOnLost = "",
    rigid: wishes.Rigid = False,
    preemptible: wishes.Preemptible = False,
    signal: wishes.Signal = "",
    grace: wishes.Grace = "",
    resume_args: wishes.ResumeArgs = "",
    done_file: wishes.DoneFile = "",
    batch_size: wishes.BatchSize = None,
    max_batch_size: wishes.MaxBatchSize = None,
    atomic_batch_size: wishes.AtomicBatchSize = "",
    accept: wishes.Accept = None,
    env: wishes.Env = None,
    cwd: wishes.Cwd = "",
    python: wishes.Python = "",
    setup: wishes.Setup = "",
    snapshot: wishes.Snapshot = False,
    hold: wishes.Hold = False,
    wait: wishes.Wait = False,
    dry_run: wishes.DryRun = False,
    json: Json = False,
) -> int:
    """Queue a training script, or after `--` a command as it is.

    A script that uses the training library gets as many GPUs as pay off, and more or fewer while it runs. A command gets a
    fixed number of GPUs and is never moved, unless --preemptible. A shell script is such a command; `#GPQ` lines at its head
    are options, and so are `#SBATCH` lines and the usual flags of sbatch (-J, -G, --gres, -D, --wrap, ...), as far as they
    mean something here.

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
    told = [name for name in ctx.params if getattr(ctx.get_parameter_source(name), "name", "") == "COMMANDLINE"]
    fields = {asking.LISTS.get(name, name): ctx.params[name] for name in told if name != "words"}
    return queueing.run(asking.Parsed(fields, list(words or []), *ctx.obj))
