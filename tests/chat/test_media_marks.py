"""Marks of media: a prompt may be rendered twice, with items as parts and with items as words."""

from enginebay.chat.plan.media_marks import MediaItem, MediaMarks
from enginebay.contract.media import Media, Modality
from enginebay.models.template.features import TemplateFeatures
from enginebay.models.template.template import ChatTemplate
from tests.media.samples import media

PICTURES_ONLY = (
    "{% for m in messages %}{% for p in m.content %}"
    "{% if p.type == 'image' %}<image>{% else %}{{ p.text }}{% endif %}"
    "{% endfor %}{% endfor %}"
)
PLACEHOLDERS: dict[Modality, str] = {"image": "<image>", "audio": "<audio>"}


def item(kind: Modality, number: int) -> MediaItem:
    return MediaItem(media(kind, b"%d" % number), f"messages[0].content[{number}]")


def test_items_as_words_after_a_template_knew_only_some_as_parts() -> None:
    """What was tried for the parts means nothing for what is written afterwards."""
    features = TemplateFeatures(ChatTemplate(PICTURES_ONLY, {}))
    items = [*(item("image", number) for number in range(8)), item("audio", 8)]
    for _ in range(20):
        marks = MediaMarks(PLACEHOLDERS, items)
        assert marks.written(features, by_template=True) is None
        words = marks.written(features, by_template=False)
        assert words
        texts = [*["is <image> a tag?"] * 8, *words.values()]
        content = [{"type": "text", "text": text} for text in texts]
        messages = [{"role": "user", "content": content}]
        prompt = features.template.render(marks.hide(messages), variables={})
        assert "<image>" not in prompt
        pieces = marks.split(prompt, messages)
        assert pieces is not None
        assert [each for each in pieces if isinstance(each, Media)] == [i.media for i in items]
        assert marks.shown(pieces).count("<image>") == 8 + 8
