"""A model that says of what size and colour the pictures of a prompt are."""

from enginebay import (
    BackendRegister,
    BackendSettings,
    EngineBackend,
    GenerationRequest,
    Media,
    decode_picture,
    hookimpl,
)
from enginebay.testing import ScriptedEngine

COLOURS = {"red": (255, 0, 0), "green": (0, 128, 0), "blue": (0, 0, 255), "white": (255, 255, 255)}


class Seer(ScriptedEngine):
    """Sees all pictures of the request, those of earlier messages too."""

    def __init__(self) -> None:
        super().__init__(self._say, context_length=32768, media=["image"])
        self._seen = ""

    def add_request(self, request: GenerationRequest) -> None:
        pictures = [described(span.media) for span in request.media]
        self._seen = ", ".join(pictures) or "nothing"
        super().add_request(request)

    def _say(self, prompt: str, index: int) -> list[str]:
        return ["I see ", self._seen, "."]


def described(media: Media) -> str:
    picture = decode_picture(media)
    width, height = picture.size
    pixel = picture.getpixel((width // 2, height // 2))

    def distance(name: str) -> int:
        return sum(abs(a - b) for a, b in zip(COLOURS[name], pixel, strict=True))

    return f"a {min(COLOURS, key=distance)} picture of {width} x {height}"


@hookimpl
def register_backends(register: BackendRegister) -> None:
    def create(settings: BackendSettings) -> EngineBackend:
        return EngineBackend(Seer)

    register("seer", create)
