"""How a run looks in a terminal: one picture of a `RunStatus`, as tall and wide as there is room."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from bilateral.engine.event_tail import Told
from bilateral.engine.events import (
    Event,
    MessageRefused,
    RecoveryChecked,
    RoundFailed,
    RunEnded,
    RunStarted,
    SiteMissed,
    SiteReturned,
    Waiting,
)
from bilateral.engine.run_status import RunStatus, SiteStatus
from bilateral.engine.run_story import RunState, SiteState
from bilateral.learning.evaluation import main_metric

BLOCKS = "▁▂▃▄▅▆▇█"
BLOCKS_IN_ASCII = "_.-=+*#@"
MAX_CURVE = 48
MIN_EVENT_LINES = 5
MAX_EVENTS = 15
STATE_STYLES = {
    RunState.STARTING: "cyan",
    RunState.RUNNING: "green",
    RunState.WAITING: "yellow",
    RunState.STOPPED: "red",
    RunState.SILENT: "bold red",
    RunState.FINISHED: "bold green",
}
SITE_STYLES = {
    SiteState.IN_LAST_ROUND: "green",
    SiteState.MISSED: "red",
    SiteState.REFUSED: "bold red",
    SiteState.RETURNED: "cyan",
    SiteState.ABSENT: "red",
}


@dataclass(frozen=True)
class View:
    """`height` None: every site, with long lines folded; else what fits on a screen, with long lines cut."""

    width: int
    height: int | None
    encoding: str

    @staticmethod
    def of(console: Console, *, whole: bool) -> View:
        return View(console.width, None if whole else console.height, console.encoding)

    @property
    def blocks(self) -> str:
        return BLOCKS if self.encoding.startswith("utf") else BLOCKS_IN_ASCII

    def clean(self, text: str) -> str:
        """Text that a site may have written, without anything that a terminal would obey or cannot show."""
        shown = "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))
        return shown.encode(self.encoding, "replace").decode(self.encoding)

    def line(self, text: str, style: str = "") -> Text:
        """One line of a picture."""
        if self.height is None:
            return Text(text, style, overflow="fold")
        return Text(text, style, no_wrap=True, overflow=self.overflow)

    @property
    def overflow(self) -> Literal["ellipsis", "crop"]:
        return "ellipsis" if self.encoding.startswith("utf") else "crop"

    def picture(self, status: RunStatus) -> Group:
        """Header, progress, metrics with a curve, sites, recent events."""
        top = [*self._header(status), *self._metrics(status)]
        sites, events = len(status.sites), min(MAX_EVENTS, len(status.recent))
        if self.height is not None:
            room = max(4, self.height - len(top) - 3)  # two blank lines and the heads of the columns
            sites = min(sites, max(3, room - min(events, MIN_EVENT_LINES)))
            events = min(events, room - sites)
        parts: list[RenderableType] = list(top)
        if sites:
            parts += ["", self._sites(status.sites, sites, status.unit)]
        if events > 0:
            parts += ["", *(self.event(told, status.unit) for told in status.recent[-events:])]
        return Group(*parts)

    def event(self, told: Told, unit: str) -> Text:
        """A line about an event, in local time."""
        at = getattr(told.event, "round", 0)
        return self.line(f"{told.time.astimezone():%H:%M:%S}  {unit} {at:<4}  {self.clean(describe(told.event))}")

    def summary(self, status: RunStatus) -> Text:
        """The run in one line, for logs."""
        parts = [status.state.value, f"{status.unit} {status.round}/{status.num_rounds}"]
        if status.metrics:
            name, value = leading_metric(status.metrics)
            parts.append(f"{self.clean(name)} {number(value)}")
        if status.sites:
            parts.append(_attendance(status))
        if status.seconds_left:
            parts.append(f"{duration(status.seconds_left)} left")
        if status.reason:
            parts.append(self.clean(status.reason))
        return self.line("  ".join(parts))

    def _header(self, status: RunStatus) -> Iterator[RenderableType]:
        head = Table.grid(expand=True, padding=(0, 1))
        head.add_column(ratio=1, no_wrap=self.height is not None, overflow=self.overflow)
        head.add_column(justify="right", no_wrap=True)
        title = Text(self.clean(f"{status.data} / {status.model}"), "bold")
        if status.engine:
            title.append(f"  {self.clean(status.engine)}, term {status.term}", "not bold")
        head.add_row(title, Text(status.state.value, STATE_STYLES[status.state]))
        yield head
        yield self._progress(status)
        facts = [_attendance(status)] if status.sites else []
        if status.num_failed:
            facts.append(_count(status.num_failed, status.unit) + " failed")
        if status.seconds_since_event is not None:
            facts.append(f"last event {duration(round(status.seconds_since_event))} ago")
        if status.num_unreadable:
            facts.append(_count(status.num_unreadable, "unreadable line"))
        yield self.line(", ".join(facts) or "nothing told yet")
        if status.reason:
            yield self.line(f"{status.state.value}: {self.clean(status.reason)}", STATE_STYLES[status.state])
        for row in status.spending[: 1 if self.height is not None else None]:
            text = f"epsilon {row.epsilon:.3g} at delta {row.delta:g} for the whole run, against {row.observer}"
            yield self.line(self.clean(f"{text} ({row.status}; unit: one {row.unit})"))

    def _progress(self, status: RunStatus) -> RenderableType:
        words = f"{status.round}/{status.num_rounds} {status.unit}s"
        if status.seconds_per_round is not None:
            words += f"  {duration(status.seconds_per_round)} a {status.unit}"
        if status.seconds_left:
            words += f"  {duration(status.seconds_left)} left"
        row = Table.grid(padding=(0, 1), expand=True)
        row.add_column(ratio=1)
        row.add_column(no_wrap=True)
        row.add_row(ProgressBar(total=max(1, status.num_rounds), completed=status.round), words)
        return row

    def _metrics(self, status: RunStatus) -> Iterator[RenderableType]:
        if not status.metrics:
            return
        name, value = leading_metric(status.metrics)
        values = [metrics[name] for _, metrics in status.history if name in metrics]
        words, span = f"{self.clean(name)} {number(value)}  ", f"  {number(min(values))} to {number(max(values))}"
        room = min(MAX_CURVE, self.width - len(words) - len(span))
        curve = sparkline(values, room, self.blocks) if len(values) > 1 and room > 3 else ""
        yield self.line(words + curve + (span if curve else ""))
        others = [f"{self.clean(other)} {number(found)}" for other, found in status.metrics.items() if other != name]
        if status.difference_to_fedavg is not None:
            others.append(f"difference to FedSGD {status.difference_to_fedavg:.1e}")
        if others:
            yield self.line("  ".join(others))

    def _sites(self, sites: Sequence[SiteStatus], num_lines: int, unit: str) -> RenderableType:
        shown = list(sites)
        if len(sites) > num_lines:  # those in trouble first, and a word about the rest
            order = list(SITE_STYLES)[1:]
            shown.sort(key=lambda site: order.index(site.state) if site.state in order else len(order))
            num_lines -= 1
        rest, shown = shown[num_lines:], shown[:num_lines]
        table = Table(box=None, header_style="bold", pad_edge=False, expand=True)
        cut = self.height is not None
        table.add_column("site", no_wrap=cut, overflow=self.overflow if cut else "fold", max_width=self.width // 4)
        table.add_column("state", no_wrap=True)
        for column in (f"{unit}s", "misses", "refused"):
            table.add_column(column, justify="right", no_wrap=True)
        table.add_column("last trouble", ratio=1, no_wrap=cut, overflow=self.overflow if cut else "fold")
        for site in shown:
            counts = (str(site.num_rounds), str(site.num_misses), str(site.num_refused))
            state = Text(site.state.value, SITE_STYLES.get(site.state, ""))
            table.add_row(Text(self.clean(site.name)), state, *counts, Text(self._trouble(site, unit)))
        if not rest:
            return table
        states = ", ".join(
            f"{how_many} {state}" for state, how_many in Counter(site.state.value for site in rest).items()
        )
        return Group(table, self.line(f"and {_count(len(rest), 'more site')}: {states}"))

    def _trouble(self, site: SiteStatus, unit: str) -> str:
        trouble = site.trouble
        if trouble is None:
            return ""
        stage = f", {trouble.stage}" if trouble.stage else ""
        return self.clean(f"{unit} {trouble.round}{stage}: {trouble.reason}")


def _attendance(status: RunStatus) -> str:
    present = sum(site.state is SiteState.IN_LAST_ROUND for site in status.sites)
    return f"{present} of {_count(len(status.sites), 'site')} in the last {status.unit}"


def _count(how_many: int, noun: str) -> str:
    return f"{how_many} {noun}{'' if how_many == 1 else 's'}"


def leading_metric(metrics: dict[str, float]) -> tuple[str, float]:
    """The main metric, or the first if the run measured something of its own."""
    if {"test_accuracy", "test_mse"} & metrics.keys():
        return main_metric(metrics)
    return next(iter(metrics.items()))


def sparkline(values: Sequence[float], width: int, blocks: str = BLOCKS) -> str:
    """At most `width` blocks; each stands for the mean of as many values, from the least mean to the greatest."""
    width = min(width, len(values))
    largest = max(map(abs, values)) or 1.0  # a run that diverges must not overflow the curve that shows it
    edges = [index * len(values) // width for index in range(width + 1)]
    means = [math.fsum(value / largest for value in values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
    low, span = min(means), max(means) - min(means)
    top = len(blocks) - 1
    return "".join(blocks[round((mean - low) / span * top) if span else 0] for mean in means)


def number(value: float) -> str:
    return f"{value:.4f}" if abs(value) < 1e6 else f"{value:.3e}"


def duration(seconds: float) -> str:
    """Two units are enough: 0.42 s, 12 s, 2 min 51 s, 3 h 5 min, 2 d 4 h."""
    if seconds < 10:
        return f"{seconds:.2g} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 1:
        return f"{rest} s"
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def describe(event: Event) -> str:
    """A notable event as words for people. They may be a site's: print them only after cleaning."""
    text = event.event.replace("_", " ")
    match event:
        case RunStarted():
            again = f"goes on after round {event.round}" if event.round or event.term else "begins"
            text = f"run {again} on {event.engine} with {_count(len(event.sites), 'site')} (term {event.term})"
        case RecoveryChecked():
            text = f"recovery checked: {event.error:.0e} against plain autograd in {event.dtype}"
        case RoundFailed():
            text = f"round failed: {event.reason}"
        case SiteMissed():
            text = f"{event.site} missed at {event.stage}: {event.reason}"
        case MessageRefused():
            text = f"{event.site} refused: {event.reason}"
        case SiteReturned():
            text = f"{event.site} is back"
        case Waiting():
            text = f"waiting: {_count(event.needed, 'site')} needed, present: {', '.join(event.present) or 'none'}"
        case RunEnded():
            text = f"run {'finished' if event.finished else 'stopped'}" + (f": {event.reason}" if event.reason else "")
    return text
