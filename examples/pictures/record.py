"""Records the pictures of the README: two embedded servers, real training jobs, and what the
commands show about them.

    make pictures            # a few minutes; needs PyTorch, and an otherwise idle machine

Each picture is an SVG, drawn from the output of the command. It uses no font and no other resource
from elsewhere.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

HERE = Path(__file__).resolve().parent
EXAMPLES = HERE.parent
COLUMNS = 110
PATIENCE = 300.0  # seconds
# width over height of a letter in the fonts of PICTURE, for programs that do not stretch text
ASPECT = 0.602
CONFIG = """\
interval = 4.0
settle_seconds = 4.0
restart_seconds = 6.0
[nodes.alpha]
slots = 2
[nodes.beta]
slots = 2
"""
THEME = TerminalTheme(
    (22, 27, 34), (201, 209, 217),
    [(72, 79, 88), (255, 123, 114), (63, 185, 80), (210, 153, 34),
     (88, 166, 255), (188, 140, 255), (57, 197, 207), (201, 209, 217)],
)  # fmt: skip
PICTURE = """\
<svg xmlns="http://www.w3.org/2000/svg" xml:space="preserve" viewBox="0 0 {width} {height}" \
role="img" aria-label="a terminal">
<style>
.{unique_id}-matrix {{ font: {char_height}px "DejaVu Sans Mono", Menlo, Consolas, monospace; \
line-height: {line_height}px; }}
.{unique_id}-title {{ font: bold 16px sans-serif; }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal"><rect \
x="0" y="0" width="{terminal_width}" height="{terminal_height}"/></clipPath>
{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">{matrix}</g>
</g>
</svg>
"""


class Scene:
    """Starts a daemon in `home`. Each command runs as a user would run it."""

    def __init__(self, home: Path) -> None:
        (home / "config.toml").write_text(CONFIG)
        self.home = home
        self.environment = {
            **os.environ, "GPQ_HOME": str(home), "GPQ_CONFIG": str(home / "config.toml"),
            "COLUMNS": str(COLUMNS), "LINES": "40", "LANG": "C.UTF-8",
        }  # fmt: skip

    def gpq(self, *argv: str) -> str:
        command = [sys.executable, "-m", "gpq", *argv]
        return subprocess.run(
            command,
            env=self.environment,
            cwd=EXAMPLES,
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        ).stdout

    def rows(self) -> list[dict[str, object]]:
        found: list[dict[str, object]] = json.loads(self.gpq("status", "--json"))["jobs"]
        return found

    def wait(self, *ready: str, looks: int = 1) -> None:
        """Waits until jobs with these names run and their goodput is known, in so many looks in a
        row, one per second."""
        until = time.monotonic() + PATIENCE
        seen = 0
        while seen < looks:
            running = {
                row["name"] for row in self.rows() if row["state"] == "running" and row["goodput"]
            }
            seen = seen + 1 if running >= set(ready) else 0
            if time.monotonic() > until:
                raise SystemExit(
                    f"{' and '.join(ready)} did not run within {PATIENCE:.0f}"
                    f" s:\n{self.gpq('status')}"
                )
            time.sleep(1.0)

    def picture(self, name: str, *argv: str) -> None:
        """Writes examples/pictures/NAME.svg from the output of the command."""
        shown = self.gpq(*argv, "--color", "always")
        console = Console(
            record=True,
            file=StringIO(),
            width=COLUMNS,
            force_terminal=True,
            color_system="truecolor",
        )
        console.print(Text.from_ansi(shown), soft_wrap=True)
        svg = console.export_svg(
            title=f"gpq {argv[0]}",
            theme=THEME,
            code_format=PICTURE,
            unique_id=f"gpq-{name}",
            font_aspect_ratio=ASPECT,
        )
        (HERE / f"{name}.svg").write_text(svg, encoding="utf-8")
        print(f"{name}.svg: gpq {' '.join(argv)}")


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="gpq-pictures-") as folder:
        scene = Scene(Path(folder))
        try:
            record(scene)
        finally:
            scene.gpq("cancel", "all", "--timeout", "30s")
            scene.gpq("daemon", "stop")


def record(scene: Scene) -> None:
    scene.gpq("submit", "--name", "chargpt", "chargpt/train.py", "--epochs", "60")
    scene.wait("chargpt")
    scene.gpq("submit", "--wait", "--name", "prepare", "--", "sh", "-c", "seq 100000 | wc -l")
    scene.gpq(
        "submit", "--name", "digits", "--max-batch-size", "64", "digits/train.py", "--epochs", "400"
    )
    scene.wait("chargpt", "digits")
    sweep = ("--sweep", "lr=0.01,0.02,0.05,0.1", "--array", "%1")
    scene.gpq("submit", *sweep, "--after", "digits", "digits/train.py", "--lr", "{lr}")
    scene.gpq("submit", "--gpus", "2", "--hold", "--name", "evaluate", "--", "sleep", "60")
    scene.wait("chargpt", "digits", looks=20)  # gpq has learnt what it can about them
    scene.picture("status", "status")
    scene.picture("why", "why", "chargpt")
    scene.picture("top", "top", "--once")
    scene.picture("report", "report", "--by", "job")


if __name__ == "__main__":
    main()
