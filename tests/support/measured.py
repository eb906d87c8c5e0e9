"""Small folders of measurements in the published layouts, for tests of their readers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

PLACEMENTS = (
    "placement,local_bsz,step_time,sync_time",
    *("1,10,1.0,0.0", "1,20,1.5,0.0", "1,40,3.5,0.0"),
    *("2,10,1.2,0.2", "2,20,1.8,0.3"),
    *("11,10,2.0,1.0", "11,20,3.0,1.5"),
    *("12,10,2.4,1.4", "12,20,3.4,1.8"),
    *("112,10,4.0,3.0", "112,20,5.0,3.5"),
    *("13,10,2.6,1.6", "13,20,3.6,2.0"),
    *("22,10,2.2,1.2", "22,20,3.2,1.6"),
)
SCALABILITY = (
    "num_nodes,num_replicas,local_bsz,step_time,sync_time",
    *("16,16,10,8.0,7.0", "16,16,20,9.0,7.5"),
    *("16,32,10,8.5,7.5", "16,32,20,9.5,8.0"),
)
HEADER = "progress,iteration,metric,grad_sqr,grad_var"
SMALL = (HEADER, "100,100,0.40,8.0,4.0", "200,200,0.80,2.0,6.0", "300,300,0.70,1.0,9.0")
LARGE = (HEADER, "101,60,0.20,4.0,2.0", "198,110,0.60,1.0,5.0", "303,160,0.90,0.5,7.0")


def write(path: Path, lines: Sequence[str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    return path


def application(folder: Path, name: str = "toy", kinds: Sequence[str] = ("",)) -> Path:
    """Batches 20 and 60, three epochs, for each type in `kinds`."""
    for kind in kinds:
        suffix = f"-{kind}" if kind else ""
        write(folder / name / f"placements{suffix}.csv", PLACEMENTS)
        write(folder / name / f"scalability{suffix}.csv", SCALABILITY)
    write(folder / name / "validation-20.csv", SMALL)
    write(folder / name / "validation-60.csv", LARGE)
    return folder / name
