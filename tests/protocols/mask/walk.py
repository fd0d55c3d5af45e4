"""A group that is walked through one round, message by message, so that a test can interfere anywhere."""

from __future__ import annotations

from dataclasses import replace

from tests.protocols.mask.harness import MODEL, NAMES, Group, sent, upload_of
from tests.protocols.mask.test_schedules import assert_sum

from bilateral.protocols.mask.settings import MaskSettings

FIVE = NAMES[:5]


class Walk:
    """A group that is walked through round 0 step by step; `finish` completes the honest round and checks its sum."""

    STEPS = ("share", "route", "upload", "sign", "reveal")

    def __init__(self, until="share", settings=None, absent=()):
        self.group = Group(FIVE, settings or MaskSettings(threshold=0.6))
        self.server, self.clients = self.group.server, self.group.clients
        self.uploads = {name: upload_of(0, number) for number, name in enumerate(FIVE)}
        self.absent = set(absent)  # these share and never upload
        self.opening = self.server.open_round(0, FIVE, 3)
        self.occasion = self.server._record.occasion
        self.done = {}
        self.messages = {}
        for step in self.STEPS[: self.STEPS.index(until)]:
            self.complete(step)

    def message(self, step, name):
        """The honest message of one client; made once."""
        if (step, name) not in self.messages:
            client = self.clients[name]
            make = {
                "share": lambda: client.open(self.opening),
                "upload": lambda: client.mask(self.uploads[name], context=MODEL),
                "sign": lambda: client.sign(self.listed),
                "reveal": lambda: client.reveal(self.request),
            }[step]
            self.messages[step, name] = sent(make())
        return self.messages[step, name]

    def deliver(self, step, name, message=None):
        collect = {
            "share": self.server.collect_shares,
            "upload": self.server.collect_upload,
            "sign": self.server.collect_signature,
            "reveal": self.server.collect_reveal,
        }[step]
        collect(name, message if message is not None else self.message(step, name))
        self.done.setdefault(step, set()).add(name)

    def begin(self, step):
        if step == "sign" and not hasattr(self, "listed"):
            self.listed = sent(self.server.close_uploads(context=MODEL))
        if step == "reveal" and not hasattr(self, "request"):
            self.request = sent(self.server.request_shares())

    def complete(self, step):
        if step == "route":
            self.routed = self.server.route()
            for name, message in self.routed.items():
                self.clients[name].receive_shares(sent(message))
            return
        self.begin(step)
        for name in FIVE:
            gone = step != "share" and name in self.absent
            if not gone and name not in self.done.get(step, ()):
                self.deliver(step, name)

    def finish(self, start):
        for step in self.STEPS[self.STEPS.index(start) :]:
            self.complete(step)
        aggregate = self.server.unmask((2, 5), 3)
        assert_sum(aggregate, self.opening, self.uploads, set(FIVE) - self.absent)


def cut(items):
    return items[:-1]


def list_with(walk, **changes):
    return replace(walk.listed, **changes)
