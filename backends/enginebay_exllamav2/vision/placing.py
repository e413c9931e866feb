"""Choices whose prompts have pictures get the embeddings of these, one picture a step."""

from collections.abc import Callable

from enginebay import ServingError
from enginebay_exllamav2.choice import LibraryChoice
from enginebay_exllamav2.vision.pictures import Pictures


class Placing:
    """Gives a choice, before it runs, the embeddings that stand in its prompt.

    Running choices wait while a picture is encoded, so a step encodes one at most; a choice whose
    pictures are not all encoded stays in the queue, and others may pass it.
    """

    def __init__(
        self, pictures: Pictures | None, fail: Callable[[LibraryChoice, ServingError], None]
    ) -> None:
        """`fail` is told of a choice with a picture that cannot be encoded."""
        self._pictures = pictures
        self._fail = fail
        self._free = True

    def start_step(self) -> None:
        """Another picture may be encoded."""
        self._free = True

    def place(self, choice: LibraryChoice) -> bool:
        """Whether the choice has all of its embeddings now."""
        pictures = self._pictures
        spans = [span for span in choice.request.media if not span.first]
        if pictures is None or len(choice.embeddings) == len(spans):
            return True
        try:
            for span in spans[len(choice.embeddings) :]:
                at_hand = pictures.encoded(span.media)
                if not at_hand and not (self._free and pictures.ready(span.media)):
                    return False
                self._free = self._free and at_hand
                embedding = pictures.embedding(span.media)
                choice.embeddings.append((span.start - embedding.pre_tokens, embedding))
        except ServingError as error:
            self._fail(choice, error)
            return False
        return True
