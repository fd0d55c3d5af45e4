"""How well the model did, beside the same training without protection."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bilateral.learning.evaluation import main_metric
from bilateral.report.frame import folded
from bilateral.report.html import Html, el, joined, table
from bilateral.report.run_page.charts import COLOURS, Line, curves
from bilateral.report.run_page.facts import RunFacts
from bilateral.runs.rounds.loop import REFERENCE_PREFIX
from bilateral.runs.rounds.result import FEDSGD


def learning(facts: RunFacts) -> Html:
    rows: list[Mapping[str, float]] = [row for row in facts.rows if "round" in row]
    rows = rows or [{"round": float(number), **metrics} for number, metrics in facts.status.history]
    if not rows:
        return Html()
    names = [name for name in rows[-1] if name != "round" and not name.startswith((REFERENCE_PREFIX, "difference"))]
    if not names:
        return Html()
    metrics = {name: rows[-1][name] for name in names}
    first = main_metric(metrics)[0] if metrics else names[0]
    own = str(facts.settings.get("protection", "this run"))

    def lines(name: str) -> list[Line]:
        plain = [(row["round"], row[REFERENCE_PREFIX + name]) for row in rows if REFERENCE_PREFIX + name in row]
        mine = [(row["round"], row[name]) for row in rows if name in row]
        return [Line(f"{yardstick(facts)}, same seed", plain, COLOURS[1], wide=True), Line(own, mine)]

    unit = f"{facts.status.unit}s"
    pictures = [
        el("div", curves(_said(name, yardstick(facts)), lines(name), x_name=unit, show=_show(name)), class_="card")
        for name in dict.fromkeys((first, *names))
    ]
    shown = [name for name in rows[-1] if name != "round"]
    figures = [
        [f"{row['round']:,.0f}", *(f"{row[name]:.4g}" if name in row else "-" for name in shown)] for row in rows
    ]
    head = (facts.status.unit, *(_said(name, yardstick(facts)) for name in shown))
    listed = table(head, figures, caption="Every evaluation", numeric=range(1, len(head)))
    more = el("details", el("summary", "Other measures"), el("div", pictures[1:], class_="grid two"))
    return joined((pictures[0], more if len(pictures) > 1 else None, folded("The figures", listed)))


def yardstick(facts: RunFacts) -> str:
    """What the same training without protection is called: FedSGD, or with local steps FedAvg."""
    return str(facts.result.get("yardstick") or FEDSGD)


def _said(name: str, plain: str) -> str:
    if name.startswith(REFERENCE_PREFIX):
        return f"{_said(name.removeprefix(REFERENCE_PREFIX), plain)} of {plain}"
    return {"difference_to_fedavg": f"difference of weights to {plain}"}.get(name, name.replace("_", " "))


def _show(name: str) -> Callable[[float], str]:
    return (lambda value: f"{100 * value:.0f} %") if "accuracy" in name else (lambda value: f"{value:.3g}")
