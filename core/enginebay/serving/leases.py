"""The model of a request: found by name, ready, and kept loaded until the response has ended."""

from enginebay.chat.answer.running import RunningRequest
from enginebay.contract.errors import (
    InvalidRequestError,
    UnsupportedParameterError,
    WrongModelError,
)
from enginebay.models.index import FoundModel
from enginebay.models.permissions import allowed, permitted
from enginebay.models.registry import Models
from enginebay.models.served import ServedModel, routes


class Leases:
    """Finds the models that requests name, if their keys may use them, and holds them for these.

    Raises as `permitted` and `Models.lease` do. A name of None means the current model.
    """

    def __init__(self, models: Models) -> None:
        self._models = models

    async def find(self, running: RunningRequest, name: str | None) -> FoundModel:
        """The model a request names, in any state."""
        await self._models.look_for(name)
        return permitted(running.key, name, self._models)

    async def hold(self, running: RunningRequest, found: FoundModel) -> ServedModel:
        """This model, ready to answer, and kept loaded until `running` is released.

        `TokenLimitError` if its key has no tokens left: nothing is loaded for it.
        """
        if not running.free:
            running.require_tokens()
        running.asks, running.model, running.loading = True, found.name, True
        with running.interruptible():
            model = await running.hold(self._models.lease(found, running.key_name))
        running.loading = False
        if running.keep_alive is not None:
            everybody = allowed("shorten_stay", is_admin=running.is_admin) == "all"
            found.entry.stay.ask(running.key_name, running.keep_alive, for_everybody=everybody)
        return model

    async def served(self, running: RunningRequest, name: str | None) -> ServedModel:
        """The model a request names, held for it."""
        return await self.hold(running, await self.find(running, name))

    async def generating(self, running: RunningRequest, name: str | None) -> ServedModel:
        """As `served`; an error if it generates no text.

        Of classifiers and reward models it is a `WrongModelError`, as in LLaMA-Factory.
        """
        model = await self.served(running, name)
        if model.info.generates:
            if name:
                self._models.use(running.key_name, model.name)
            return model
        kind = WrongModelError if model.info.labels else InvalidRequestError
        raise kind(
            f"model {model.asked!r} does not generate text: use {', '.join(routes(model.info))}",
            param="model",
        )

    async def prompted(self, running: RunningRequest, name: str | None) -> ServedModel:
        """As `generating`; an error if it takes the messages of chats only."""
        return _with_tokens(await self.generating(running, name))

    async def tokenized(self, running: RunningRequest, name: str | None) -> ServedModel:
        """As `served`, be it for embeddings; an error if its tokens are not known."""
        return _with_tokens(await self.served(running, name))


def _with_tokens(model: ServedModel) -> ServedModel:
    if model.info.chats:
        raise UnsupportedParameterError(
            f"model {model.asked!r} takes chat messages, and its prompts are rendered elsewhere: "
            "ask it by a route of chats, such as /v1/chat/completions",
            param="model",
        )
    return model
