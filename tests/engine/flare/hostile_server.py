"""A server whose operator is dishonest: it sends to its sites whatever a test writes into a folder."""

import base64
import json
import threading
import time
import uuid
from pathlib import Path

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.private.admin_defs import Message
from nvflare.private.defs import new_cell_message


class HostileServer(FLComponent):
    """Built by the server's own `resources.json`. `folder`: requests come in as JSON files, replies go out as such."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self._folder = Path(folder)

    def handle_event(self, event_type, fl_ctx):
        if event_type == EventType.SYSTEM_START:
            threading.Thread(target=self._serve, args=(fl_ctx.get_engine(),), daemon=True).start()

    def _serve(self, engine):
        while True:
            for path in sorted(self._folder.glob("*.request")):
                answers = [self._send(engine, one) for one in json.loads(path.read_text())]
                partial = path.with_suffix(".partial")
                partial.write_text(json.dumps(answers))
                path.unlink()
                partial.rename(path.with_suffix(".reply"))
            time.sleep(0.05)

    def _send(self, engine, request):
        sites = {client.name: client.token for client in engine.get_clients()}
        if "channel" in request:
            return {site: _ask_cell(engine.server.cell.core_cell, site, request) for site in sites}
        body = base64.b64decode(request["zip"]) if "zip" in request else request["body"]
        messages = {}
        for token in sites.values():
            messages[token] = Message(request["topic"], body)
            messages[token].headers.update(request["headers"])
        with engine.new_context() as fl_ctx:
            replies = engine.server.admin_server.send_requests(messages, fl_ctx, timeout_secs=300.0)
        names = {token: name for name, token in sites.items()}
        return {names[reply.client_token]: _text(reply.reply) for reply in replies}


def _ask_cell(cell, site, request):
    """What a site's process answers on any channel of FLARE's; None if it does not within a moment."""
    message = new_cell_message({}, request.get("body"))
    reply = cell.send_request(request["channel"], request["topic"], site, message, timeout=1.0)
    answered = reply.get_header(MessageHeaderKey.RETURN_CODE) == ReturnCode.OK
    return {"body": str(reply.payload)} if answered else None


def _text(reply):
    return (
        None if reply is None else {"body": str(reply.body), "headers": {k: str(v) for k, v in reply.headers.items()}}
    )


def install(workspace: Path, folder: Path) -> None:
    """Make the server of a FLARE workspace a hostile one."""
    folder.mkdir()
    path = workspace / "local" / "resources.json"
    resources = json.loads(path.read_text())
    part = {"id": "hostile", "path": f"{__name__}.HostileServer", "args": {"folder": str(folder)}}
    resources["components"] = [one for one in resources["components"] if one["id"] != "job_gate"] + [part]
    path.write_text(json.dumps(resources))


def send(folder: Path, requests: list[dict], wait_until) -> list[dict]:
    """What the sites answer to requests of the hostile server: by request, by site."""
    name = uuid.uuid4().hex
    partial = folder / f"{name}.writing"
    partial.write_text(json.dumps(requests))
    partial.rename(folder / f"{name}.request")
    reply = folder / f"{name}.reply"
    wait_until(reply.exists)
    return json.loads(reply.read_text())
