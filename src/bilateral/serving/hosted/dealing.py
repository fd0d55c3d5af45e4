"""The dealer's site: `AnswerDealer` at the end of the server's line."""

from __future__ import annotations

from bilateral.protocols.messages import Message
from bilateral.serving.dealer import AnswerDealer
from bilateral.serving.hosted.messages import TO_DEALER_SITE
from bilateral.serving.hosted.plan import ServingPlan
from bilateral.serving.hosted.site import ServiceSite


class DealingSite(ServiceSite):
    types = TO_DEALER_SITE

    def __init__(self, plan: ServingPlan, dealer: AnswerDealer, version: str) -> None:
        super().__init__(plan.dealer, plan, version)
        self._dealer = dealer

    def handle(self, message: Message) -> Message:
        return self._dealer.handle(message)
