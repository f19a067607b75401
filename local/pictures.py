"""`make pictures`: draws the last run of `make demo`, into docs/images.

- demo.svg: the output of the run.
- dashboard.svg: the dashboard of template.yaml, from the metrics in the log lines of the run.

The same run gives the same pictures. The demo keeps its run in .local/demo.json.
"""

import io
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from html import escape
from statistics import mean
from typing import Any

import demo
import yaml
from cloud import ROOT
from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI
from rich.text import Text

Json = dict[str, Any]
IMAGES = ROOT / "docs" / "images"


# ---- the terminal ------------------------------------------------------------------------------

# As rich's own format, without the fonts that it loads from the network.
TERMINAL = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: {char_height}px; \
line-height: {line_height}px; font-variant-east-asian: full-width }}
.{unique_id}-title {{ font-size: 18px; font-family: sans-serif }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/>
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""
COLUMNS = 120


def terminal(output: str) -> str:
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text.from_ansi("$ make demo\n" + output.rstrip()))
    return console.export_svg(title="make demo", theme=DIMMED_MONOKAI, code_format=TERMINAL, unique_id="demo")


# ---- the dashboard of the template -------------------------------------------------------------


class Body(yaml.SafeLoader):
    """Reads templates with the arguments of intrinsic functions in place of the functions."""


def arguments(loader: yaml.SafeLoader, _: str, node: yaml.Node) -> Any:
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    return loader.construct_scalar(node) if isinstance(node, yaml.ScalarNode) else None


Body.add_multi_constructor("!", arguments)


def dashboard() -> list[Json]:
    """The widgets, with the defaults of parameters and the names of resources."""
    template = yaml.load((ROOT / "template.yaml").read_text(), Loader=Body)
    timeout = demo.PARAMETERS["FunctionTimeout"]
    values = {name: p["Default"] for name, p in template["Parameters"].items() if "Default" in p}
    values["LongDuration"] = template["Mappings"]["OfTimeout"][timeout]["LongDuration"]
    text, _ = template["Resources"]["Dashboard"]["Properties"]["DashboardBody"]
    text = re.sub(r"\$\{([\w.:]+)\}", lambda name: str(values.get(name[1], name[1])), text)
    widgets: list[Json] = json.loads(text)["widgets"]
    return widgets


# ---- the data ----------------------------------------------------------------------------------

PERIOD = 2.0  # seconds; a run takes half a minute, and the dashboard's own period is a minute

# Readings of the queues by the demo, for metrics of SQS.
READINGS = {
    ("ApproximateNumberOfMessagesVisible", "OrdersQueue.QueueName"): "waiting",
    ("ApproximateNumberOfMessagesNotVisible", "OrdersQueue.QueueName"): "in_flight",
    ("ApproximateNumberOfMessagesVisible", "OrdersDeadLetterQueue.QueueName"): "dead",
}


@dataclass(frozen=True)
class Run:
    """The metrics of one stack: values with their times, in seconds since the first message."""

    values: dict[tuple[str, str], list[tuple[float, float]]]
    end: float

    @staticmethod
    def of(kept: Json, stack: int) -> "Run":
        values: defaultdict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
        start = kept["states"][0]["time"]
        for state in kept["states"]:
            for (metric, queue), reading in READINGS.items():
                values[metric, queue].append((state["time"] - start, state["queues"][stack][reading]))
        sent = [(state["time"] - start, state["queues"][stack]["sent"]) for state in kept["states"]]
        for (_, before), (time, after) in zip([(0.0, 0), *sent], sent, strict=False):
            values["NumberOfMessagesSent", "OrdersQueue.QueueName"].append((time, after - before))
        for line in kept["stacks"][stack]["lines"]:
            for name, time, value in measured(line):
                values[name, "Service"].append((time - start, value))
            size = len(json.dumps(line, separators=(",", ":")))
            values["IncomingBytes", "ConsumerLogGroup"].append((logged_at(line) - start, size))
        return Run(dict(values), kept["states"][-1]["time"] - start)

    def points(self, metric: str, of: str, stat: str) -> list[tuple[float, float]]:
        """A point for each period with values."""
        periods: defaultdict[int, list[float]] = defaultdict(list)
        for time, value in self.values.get((metric, of), []):
            periods[int(time // PERIOD)].append(value)
        return [((period + 0.5) * PERIOD, statistic(stat, periods[period])) for period in sorted(periods)]


def measured(line: Json) -> Iterator[tuple[str, float, float]]:
    """Name, time and value of each metric in a line in CloudWatch's embedded metric format."""
    for directive in line.get("_aws", {}).get("CloudWatchMetrics", []):
        for metric in directive["Metrics"]:
            values = line[metric["Name"]]
            for value in values if isinstance(values, list) else [values]:
                yield metric["Name"], line["_aws"]["Timestamp"] / 1000, value


def logged_at(line: Json) -> float:
    return datetime.fromisoformat(line["timestamp"]).timestamp()


def statistic(name: str, values: list[float]) -> float:
    match name:
        case "Sum":
            return sum(values)
        case "Average":
            return mean(values)
        case "Maximum":
            return max(values)
        case "p99":
            return sorted(values)[int(0.99 * (len(values) - 1))]
    raise ValueError(f"the dashboard has the statistic {name}, which this program does not know")


# ---- drawing -----------------------------------------------------------------------------------

UNIT = 52.0  # pixels of one unit of the grid; the grid has 24 columns
TOP = 64.0
COLOURS = (
    *("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b"),
    *("#e377c2", "#bcbd22", "#17becf", "#393b79", "#637939"),
)
GREY = "#8d99a6"
TITLE = "Drawn from the metric lines of `make demo`, not a screenshot of CloudWatch"
SUBTITLE = (
    "The layout is that of the dashboard in template.yaml. A point is 2 seconds; in CloudWatch it is a minute. "
    "Numbers of messages are readings of the demo. Grey: no value in this run."
)


def text(x: float, y: float, content: str, size: float = 11, colour: str = "#16191f", **attributes: str) -> str:
    more = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in attributes.items())
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size:g}" fill="{colour}"{more}>{escape(content)}</text>'


def rectangle(x: float, y: float, width: float, height: float, colour: str, stroke: str = "none") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
    return f'<rect {place} fill="{colour}" stroke="{stroke}"/>'


def line(x1: float, y1: float, x2: float, y2: float, colour: str, dashes: str = "") -> str:
    place = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {place} stroke="{colour}"' + (f' stroke-dasharray="{dashes}"' if dashes else "") + "/>"


def wrapped(content: str, most: int) -> list[str]:
    lines = [""]
    for word in content.split():
        if len(lines[-1]) + len(word) + 1 > most and lines[-1]:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


def top_of(values: Iterable[float]) -> float:
    """The end of an axis: a round number that is not below any value."""
    highest = max(values, default=0.0)
    scale = 1.0
    while scale * 10 <= highest:
        scale *= 10
    return next(step * scale for step in (1, 2, 3, 4, 5, 6, 8, 10) if step * scale >= highest)


def short(value: float) -> str:
    return f"{value / 1000:g}k" if value >= 10_000 else f"{value:g}"


@dataclass(frozen=True)
class Series:
    label: str
    colour: str
    right: bool
    points: list[tuple[float, float]]


def series_of(properties: Json, run: Run) -> list[Series]:
    found: list[Series] = []
    for metric in properties["metrics"]:
        *names, options = metric if isinstance(metric[-1], dict) else [*metric, {}]
        if options.get("visible") is False:
            continue
        points = []
        label = options.get("label") or names[1]
        if names:
            _, name, _, of = names
            points = run.points(name, of, options.get("stat", properties["stat"]))
        colour = COLOURS[len(found) % len(COLOURS)]
        found.append(Series(label, colour, options.get("yAxis") == "right", points))
    return found


def chart(x: float, y: float, width: float, height: float, properties: Json, run: Run) -> Iterator[str]:
    title = wrapped(properties["title"], 38)
    for number, words in enumerate(title):
        yield text(x + 12, y + 20 + 14 * number, words, 12, font_weight="bold")
    series = series_of(properties, run)
    rows = (len(series) + 1) // 2 if len(series) > 5 else len(series)
    left, right = x + 38, x + width - 30
    top, bottom = y + 24 + 14 * len(title), y + height - 28 - 14 * rows
    limits = properties.get("annotations", {}).get("horizontal", [])
    heights = {
        side: top_of(
            [value for s in series if s.right is side for _, value in s.points]
            + ([] if side else [limit["value"] for limit in limits])
        )
        for side in (False, True)
    }
    drawn = [s for s in series if s.points]

    def place(time: float, value: float, side: bool) -> tuple[float, float]:
        return left + (right - left) * time / run.end, bottom - (bottom - top) * value / heights[side]

    for share in (0.0, 0.5, 1.0) if drawn else (0.0, 1.0):
        level = bottom - (bottom - top) * share
        yield line(left, level, right, level, "#e3e6e9")
        if drawn:
            yield text(left - 5, level + 3.5, short(heights[False] * share), 9.5, "#545b64", text_anchor="end")
        if any(s.right for s in drawn):
            yield text(right + 5, level + 3.5, short(heights[True] * share), 9.5, "#545b64")
    for second in range(0, int(run.end) + 1, 10):
        at, _ = place(second, 0, False)
        yield text(at, bottom + 13, f"0:{second:02}", 9.5, "#545b64", text_anchor="middle")
    if not drawn:
        middle = (left + right) / 2, (top + bottom) / 2
        yield text(*middle, "MiniStack has no such metrics", 11, GREY, text_anchor="middle")
    for limit in limits:
        _, level = place(0, limit["value"], False)
        yield line(left, level, right, level, "#d13212", "5 3")
        yield text(right, level + 11, limit["label"], 9.5, "#d13212", text_anchor="end")
    for number, s in enumerate(drawn):
        # Points of later series are smaller, so that equal values do not hide each other.
        radius = max(1.6, 4.6 - 1.1 * number)
        places = [place(time, value, s.right) for time, value in s.points]
        path = " ".join(f"{at:.1f},{level:.1f}" for at, level in places)
        yield f'<polyline points="{path}" fill="none" stroke="{s.colour}" stroke-width="1.6"/>'
        for at, level in places:
            yield f'<circle cx="{at:.1f}" cy="{level:.1f}" r="{radius:g}" fill="{s.colour}"/>'
    for number, s in enumerate(series):
        column, row = divmod(number, rows)
        at, level = x + 14 + column * (width - 20) / 2, bottom + 28 + 14 * row
        yield rectangle(at, level - 8, 8, 8, s.colour if s.points else "none", "none" if s.points else GREY)
        yield text(at + 13, level, s.label, 10, "#16191f" if s.points else GREY)


def alarms(x: float, y: float, width: float, height: float, properties: Json) -> Iterator[str]:
    yield text(x + 12, y + 20, properties["title"], 12, font_weight="bold")
    step = (height - 40) / len(properties["alarms"])
    for number, name in enumerate(properties["alarms"]):
        level = y + 34 + step * number
        yield rectangle(x + 12, level, width - 24, step - 3, "none", "#c3c9d0")
        yield text(x + 20, level + step / 2 + 2, name.removesuffix(".Arn"), 10, GREY)


def drawing(widgets: list[Json], run: Run) -> str:
    width = 24 * UNIT
    height = TOP + UNIT * max(widget["y"] + widget["height"] for widget in widgets) + 8
    parts = [
        f'<svg viewBox="0 0 {width:.0f} {height:.0f}" xmlns="http://www.w3.org/2000/svg"',
        'font-family="Arial, Helvetica, sans-serif">',
        rectangle(0, 0, width, height, "#f2f3f3"),
        text(14, 28, TITLE, 18, font_weight="bold"),
        text(14, 50, SUBTITLE, 12, "#545b64"),
    ]
    for widget in widgets:
        x, y = widget["x"] * UNIT + 4, TOP + widget["y"] * UNIT + 4
        wide, high = widget["width"] * UNIT - 8, widget["height"] * UNIT - 8
        properties = widget["properties"]
        if widget["type"] == "text":
            parts.append(text(x + 10, y + 30, properties["markdown"].lstrip("# "), 17, font_weight="bold"))
            continue
        parts.append(rectangle(x, y, wide, high, "#ffffff", "#d5dbdb"))
        if widget["type"] == "alarm":
            parts += alarms(x, y, wide, high, properties)
        else:
            parts += chart(x, y, wide, high, properties, run)
    return "\n".join([*parts, "</svg>", ""])


def main() -> int:
    if not demo.KEPT.exists():
        print("make pictures: run `make demo` first", file=sys.stderr)
        return 1
    kept = json.loads(demo.KEPT.read_text())
    if "\u2026" in kept["output"]:
        print(
            f"make pictures: run `make demo` in a terminal of {COLUMNS} columns, or `make demo | cat`", file=sys.stderr
        )
        return 1
    IMAGES.mkdir(exist_ok=True)
    (IMAGES / "demo.svg").write_text(terminal(kept["output"]))
    (IMAGES / "dashboard.svg").write_text(drawing(dashboard(), Run.of(kept, len(kept["stacks"]) - 1)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
