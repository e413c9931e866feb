"""What a backend says of its health, by `Backend.unavailable`, is what clients get to know."""

from collections.abc import AsyncGenerator

from enginebay import Delta, EngineDeadError, GenerationRequest
from enginebay.testing import ScriptedEngine
from tests.support import InlineBackend, plugins_with, scripted_config, serve

TEXTS = "/v1/completions"


class Shaky(InlineBackend):
    """Not made of an `Engine`, so nobody but itself starts it again."""

    def __init__(self) -> None:
        super().__init__(ScriptedEngine(["ok"]))
        self.reason: str | None = None
        self.dies = False

    @property
    def unavailable(self) -> str | None:
        return self.reason

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        if self.dies:
            raise EngineDeadError("gone")
        async for delta in super().generate(request):
            yield delta


def test_a_backend_that_goes_and_comes_back() -> None:
    backend = Shaky()
    with serve(scripted_config(), plugins_with(scripted=lambda settings: backend)) as server:

        def ask() -> tuple[int, str]:
            answer = server.http.post(TEXTS, json={"prompt": "x"})
            error = answer.json().get("error")
            return answer.status_code, error["message"] if error else ""

        def health() -> tuple[int, str, str, str | None]:
            answer = server.http.get("/health")
            [model] = answer.json()["models"].values()
            return answer.status_code, answer.json()["state"], model["state"], model["error"]

        assert ask() == (200, "")
        backend.reason = "the server is away"
        assert ask() == (
            503,
            "model 'scripted' cannot answer now, try again soon; the server is away",
        )
        assert health() == (503, "loading", "loading", "the server is away")
        assert server.http.get("/v1/models/scripted").json()["state"] == "loading"
        backend.reason = "half a character: \ud83d"
        assert ask()[0] == 503
        assert health() == (503, "loading", "loading", "half a character: ?")
        backend.reason = None
        assert ask() == (200, "")
        assert health() == (200, "ok", "ready", None)
        assert server.http.get("/health").json()["models"]["scripted"]["progress"] == 1


def test_a_death_is_the_end_of_a_request_and_not_of_the_model() -> None:
    """Whether the engine is back, only the backend knows."""
    backend = Shaky()
    with serve(scripted_config(), plugins_with(scripted=lambda settings: backend)) as server:
        backend.dies = True
        answer = server.http.post(TEXTS, json={"prompt": "x"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_dead")
        backend.dies = False
        assert server.http.post(TEXTS, json={"prompt": "x"}).status_code == 200
