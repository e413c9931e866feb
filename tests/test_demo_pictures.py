"""What the demo model learns about pictures from, and what it says of pictures drawn here."""

import io
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageDraw
from transformers import AutoProcessor

from demo.batches import Encoder
from demo.evaluate_pictures import Answer, Transformers, held_out
from demo.folder import load_model
from demo.patches import ROWS, normalized, patches
from demo.pictures import NUMBERS, SHAPES, Thing, picture
from demo.questions import ask, listed
from demo.sights import Sight, Sights, sight_batch
from demo.to_gguf import convert
from demo.to_mmproj import convert_mmproj
from demo.train import loss_of
from tests.effort import examples
from tests.support import SEEING_MODEL


@pytest.fixture(scope="module")
def processor() -> Any:
    return AutoProcessor.from_pretrained(SEEING_MODEL)


@examples(30)
@given(st.integers(0, 10_000))
def test_a_question_has_one_answer_that_the_picture_bears_out(seed: int) -> None:
    rng = random.Random(seed)
    things = picture(rng).things
    question = ask(rng, things)
    assert not set("()|{}") & set(question.text)
    words = question.answer.rstrip(".").replace(",", "").split()
    nouns = {thing.noun: thing.colour for thing in things}
    match question.kind:
        case "count":
            assert ["nothing", "one", "two", "three"].index(words[2]) == len(things)
        case "describe" | "is there":
            assert question.answer == f"I see {listed(things)}."
        case "is it" | "colour of":
            assert words[-1] == (nouns[words[1]] if words[0] == "The" else things[0].colour)
        case "shape" | "number":
            assert [words[-1]] == [thing.kind for thing in things]
        case "colour":
            assert words[-1] == things[0].colour
        case "unknown":
            assert words[:3] == ["I", "cannot", "tell."]


def test_things_are_listed() -> None:
    heart, seven = (Thing(kind, "orange", 0, 0, 20) for kind in ("heart", "7"))
    assert listed(()) == "no shape and no number"
    assert listed((heart,)) == "an orange heart"
    assert listed((heart, heart, seven)) == (
        "an orange heart, an orange heart and the number 7 in orange"
    )


def test_every_patch_is_labelled_by_what_covers_it() -> None:
    rng = random.Random(1)
    for _ in range(20):
        seen = picture(rng)
        found = patches(seen)
        numbers = {1 + (*SHAPES, *NUMBERS).index(thing.kind) for thing in seen.things}
        assert set(found.kinds.tolist()) - {0} <= numbers
        assert ((found.kinds > 0) == (found.colours > 0)).all()
        assert bool(seen.things) == bool(found.kinds.any())


def test_training_sees_what_the_processor_hands_over(processor: Any) -> None:
    """Pictures of any shape, padded, resized and normalized alike."""
    seen = picture(random.Random(2))
    for size in ((96, 96), (300, 180), (61, 200), (640, 640), (17, 40)):
        noise = np.random.default_rng(3).integers(0, 255, (8, 8, 3), np.uint8)
        image = Image.fromarray(noise).resize(size)
        handed = processor.image_processor(image, return_tensors="pt")["pixel_values"][0]
        learned = patches(replace(seen, image=image, things=(), masks=())).pixels
        torch.testing.assert_close(normalized(torch.from_numpy(learned)), handed)


def test_the_template_takes_parts(processor: Any) -> None:
    """And writes text as it writes it outside of parts."""

    def rendered(content: Any) -> str:
        messages = [{"role": "system", "content": content}, {"role": "user", "content": content}]
        text: str = processor.apply_chat_template(messages, add_generation_prompt=True)
        return text

    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    assert rendered(parts) == rendered("one two")
    user = [{"type": "image"}, {"type": "text", "text": "What is this?"}, {"type": "image"}]
    assert "<|im_start|>user\n<image>\nWhat is this?<image>\n<|im_end|>\n" in rendered(user)


def test_branches_are_learned_as_if_each_stood_alone(processor: Any) -> None:
    """The same loss, though branches stand behind one another in one row."""
    model = load_model(SEEING_MODEL)
    sights = Sights(Encoder(processor.tokenizer), seed=4, amount=3)
    together = next(sight for sight in sights if max(sight.branches) == 3)

    def loss(sight: Sight) -> float:
        batch = sight_batch([sight])
        assert (batch.texts.tokens == model.config.image_token_id).sum() == ROWS
        batch.texts.inputs["pixel_values"] = batch.pixels
        with torch.inference_mode():
            return loss_of(model, batch.texts).item()

    def branch(number: int) -> Sight:
        kept = [i for i, found in enumerate(together.branches) if found in (0, number)]
        tokens, targets = (
            [values[i] for i in kept] for values in (together.tokens, together.targets)
        )
        return Sight(tokens, targets, [0] * len(kept), together.pictures)

    assert loss(together) == pytest.approx(sum(loss(branch(n)) for n in (1, 2, 3)), rel=1e-4)


def test_held_out_pictures_are_always_the_same(processor: Any) -> None:
    once, again, other = (list(held_out(processor.tokenizer, 3, seed)) for seed in "112")
    assert [case.prompt for case in once] == [case.prompt for case in again]
    assert all(one.image == two.image for one, two in zip(once, again, strict=True))
    assert once[0].image != other[0].image


def drawn(size: tuple[int, int], kind: str, file: str) -> Image.Image:
    """A red circle or a blue square on white, as it comes out of a file of the given format."""
    image = Image.new("RGB", size, "white")
    x, y, radius = size[0] / 2, size[1] / 2, min(size) * 0.3
    box = (x - radius, y - radius, x + radius, y + radius)
    pen = ImageDraw.Draw(image)
    pen.ellipse(box, "red") if kind == "circle" else pen.rectangle(box, "blue")
    encoded = io.BytesIO()
    image.save(encoded, file)
    return Image.open(encoded).convert("RGB")


ENGINES = ("transformers", "llama.cpp")


@pytest.fixture(scope="module", params=ENGINES)
def answer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Answer:
    if request.param == "transformers":
        return Transformers(SEEING_MODEL).answer
    pytest.importorskip("llama_cpp")
    from demo.seeing_llama import SeeingLlama

    file, mmproj = (tmp_path_factory.mktemp("gguf") / name for name in ("demo.gguf", "mmproj.gguf"))
    convert(SEEING_MODEL, file, "f16")
    convert_mmproj(SEEING_MODEL, mmproj)
    return SeeingLlama(file, mmproj).answer


@pytest.mark.parametrize("size", [(96, 96), (400, 400), (320, 240), (90, 120), (1024, 768)])
@pytest.mark.parametrize("file", ["PNG", "JPEG"])
def test_it_says_what_it_sees(
    answer: Answer, processor: Any, size: tuple[int, int], file: str
) -> None:
    def ask_about(kind: str, question: str) -> str:
        parts = [{"type": "image"}, {"type": "text", "text": question}]
        messages = [{"role": "user", "content": parts}]
        prompt = processor.apply_chat_template(messages, add_generation_prompt=True)
        return answer(prompt, drawn(size, kind, file))

    assert ask_about("circle", "What is in this picture?") == "I see a red circle."
    assert ask_about("square", "What is in this picture?") == "I see a blue square."
    assert ask_about("circle", "What colour is it?") == "It is red."
    assert ask_about("square", "What shape is this?") == "It is a square."
