"""A site whose operator is dishonest: it keeps old tokens and sends under any name that a test puts into a folder."""

import json
import threading
import time
from pathlib import Path

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.private.admin_defs import Message
from nvflare.private.defs import CellChannel, CellMessageHeaderKeys, new_cell_message

FORGED = "forged"


class HostileSite(FLComponent):
    """Built by the site's own `resources.json`."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self._folder = Path(folder)

    def handle_event(self, event_type, fl_ctx):
        if event_type == EventType.SYSTEM_START:
            client = fl_ctx.get_engine().client
            mine = {"token": client.token, "signature": client.token_signature}
            (self._folder / f"{time.time_ns()}.token").write_text(json.dumps(mine))
            client.cell.core_cell.add_outgoing_request_filter("*", "*", _forge)
            threading.Thread(target=self._serve, args=(client.cell.core_cell,), daemon=True).start()

    def _serve(self, cell):
        while True:
            for path in sorted(self._folder.glob("*.request")):
                answer = _send(cell, json.loads(path.read_text()))
                partial = path.with_suffix(".partial")
                partial.write_text(json.dumps(answer))
                path.unlink()
                partial.rename(path.with_suffix(".reply"))
            time.sleep(0.05)


def _send(cell, request):
    """Without waiting for an answer: the other parties' own records say what became of it."""
    body = Message(request["topic"], request["body"]) if request["channel"] == CellChannel.CLIENT_MAIN else None
    message = new_cell_message({FORGED: request["headers"]}, body)
    return cell.fire_and_forget(request["channel"], request["topic"], request["target"], message)


def _forge(message):
    """After FLARE has written who sends: write something else."""
    for name, value in (message.get_header(FORGED) or {}).items():
        message.set_header(name, value)
    message.remove_header(FORGED)


def as_whom(name, token, origin):
    """The headers of a message from `name`, with a token of its own, under an origin."""
    return {
        MessageHeaderKey.ORIGIN: origin,
        CellMessageHeaderKeys.CLIENT_NAME: name,
        CellMessageHeaderKeys.TOKEN: token["token"],
        CellMessageHeaderKeys.TOKEN_SIGNATURE: token["signature"],
    }


def install(workspace: Path, folder: Path) -> None:
    """Make the site of a FLARE workspace a hostile one."""
    folder.mkdir()
    path = workspace / "local" / "resources.json"
    resources = json.loads(path.read_text())
    part = {"id": "hostile", "path": f"{__name__}.HostileSite", "args": {"folder": str(folder)}}
    resources["components"] = [*resources["components"], part]
    path.write_text(json.dumps(resources))
