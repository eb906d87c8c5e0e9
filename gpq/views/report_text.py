"""The style of the HTML report, and its glossary."""

from __future__ import annotations

STYLE = """
:root{color-scheme:light dark;--back:#fff;--text:#1b1f24;--dim:#667;--line:#d8dee4;\
--panel:#f6f8fa;--fair:#111}
@media(prefers-color-scheme:dark){:root{--back:#14171a;--text:#e6e9ec;--dim:#9aa4ae;--line:#333a41;\
--panel:#1c2126;--fair:#fff}}
body{margin:0;background:var(--back);color:var(--text);font:15px/1.45 system-ui,sans-serif}
main{max-width:980px;margin:0 auto;padding:24px 16px 48px}h1{margin:0;font-size:26px}\
h2{font-size:18px;margin:32px 0 8px}
p{margin:4px 0 12px}.dim,figcaption,dd{color:var(--dim)}.tiles{display:flex;flex-wrap:wrap;\
gap:12px;margin:20px 0}
.tile{background:var(--panel);border:1px solid var(--line);border-radius:8px;padding:10px 16px;\
min-width:110px}
.tile b{display:block;font-size:22px;font-weight:600}.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{padding:5px 10px;border-bottom:1px solid var(--line);text-align:left;white-space:nowrap}
th{font-size:12px;color:var(--dim)}.num{text-align:right}tr.all td{font-weight:600;border-bottom:0}
figure{margin:0 0 20px}svg{width:100%;height:auto;display:block}\
svg text{font:11px system-ui,sans-serif;fill:var(--dim)}
.end{text-anchor:end}.mid{text-anchor:middle}.grid{stroke:var(--line);fill:none}\
.fair{stroke:var(--fair);stroke-width:1.6;fill:none}
.pair{display:grid;grid-template-columns:repeat(auto-fill,minmax(300px,1fr));gap:8px 24px}
.key{display:flex;flex-wrap:wrap;gap:4px 16px;font-size:13px;margin:4px 0 8px;padding:0;\
list-style:none}
.key svg{width:11px;height:11px;display:inline-block;margin-right:6px}
dl{display:grid;grid-template-columns:max-content 1fr;gap:4px 16px;font-size:13px}\
dt{font-weight:600}dd{margin:0}
.s0{fill:#3b82c4}.s1{fill:#e69f00}.s2{fill:#1a9e77}.s3{fill:#cc6fa5}.s4{fill:#5bb8e8}\
.s5{fill:#d55e00}.s6{fill:#a89a1e}.s7{fill:#8b6bb8}
.s8{fill:#8a929a}.good{fill:#1a9e77}.lost{fill:#d9822b}.none{fill:#aab2ba}.bad{fill:#cf4a3f}
"""
WORDS = (
    ("GPU H", "hours times GPUs, from the start of an attempt to its end"),
    (
        "GOODPUT H",
        (
            "how many hours one GPU, used as well as the job can use it, needs for the same useful"
            " work. Useful work is progress in steps at the job's base batch size, as its training"
            " library counts it. Repeated work counts once. Jobs that report no progress have none"
        ),
    ),
    ("WORTH", "goodput hours relative to the GPU hours, over jobs that report progress"),
    (
        "SHARE, FAIR",
        (
            "the part of all GPU hours, and what it would have been if all users with running or"
            " waiting jobs had shared the GPUs equally at every moment"
        ),
    ),
    (
        "WAIT, P95",
        (
            "time from submission to the first start, without the time on hold: the median, and the"
            " value that 95% of the waits stay below"
        ),
    ),
    (
        "RESTARTS, COST H",
        (
            "starts after a job's first, and the GPU hours that stops took, and starts up to the"
            " first step"
        ),
    ),
    (
        "FAILED H",
        "GPU hours of attempts that failed or were lost, even if a checkpoint saved their work",
    ),
    (
        "RHO, MAX",
        (
            "finish-time fairness of completed jobs: the time taken, relative to the time alone on"
            " the fair share. 1 is fair, and lower is better. Median and worst"
        ),
    ),
)
