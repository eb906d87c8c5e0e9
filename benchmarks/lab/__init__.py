"""Real jobs in an emulated lab, under several policies: `make bench-lab`.

Daemon, agents, starts, checkpoints, gradient noise and convergence are real, on four servers of
four slots on one machine with two cores and no GPU. Only the time of a step is emulated. Time is
compressed six to ten times: jobs take one to ten minutes. What is fixed in gpq's code is not
compressed, such as the windows of the noise scale and the reports of a job. Under policies of fixed
size a job has the GPUs that a tuned user asks for (60 to 90% of ideal speedup), else 1 to 16.

Open `workloads.py` for who submits what, and `kinds.py` for what is trained. `train.py` is the
script of a job, and `run.py` plays a workload under one policy. `traces.py` has the same workload
for `gpq simulate`. `page.py` makes the tables. `fork_once.py` and `light` make starts cheaper.

Run it on a quiet machine. As root it starts scripts at a lower priority than those that train. A
full workload takes 13 to 16 minutes under each policy, so all of them take four hours. `smoke`
takes 4 to 5 minutes. The measurements for `gpq simulate` take 5 to 10 minutes once, and a
simulation takes seconds, under `pollux` a minute or two. Its tests take a minute.
"""
