"""What one front asks of the others, and what is set at all of them."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from enginebay.contract.errors import NotReasoningError, ServingError
from enginebay.server.peers import Answers
from enginebay_cluster.fronts.kept_settings import KeptSettings
from enginebay_cluster.fronts.said import Setting, SettingKey
from tests.fronts.site import FrontAt, quiet, site


def does(front: FrontAt, answer: Any) -> list[Any]:
    """What a front is asked, which it answers so."""
    asked: list[Any] = []

    async def handler(value: Any) -> Any:
        asked.append(value)
        if isinstance(answer, Exception):
            raise answer
        return answer

    front.front.handlers["do"] = handler
    return asked


async def ask(front: FrontAt, value: Any = None) -> Answers:
    answers: Answers = await front.front.ledger.call("ask_others", "do", value, 2.0)
    return answers


async def test_all_others_are_asked_once() -> None:
    async with site() as at:
        one, two, three = [await at.front(name) for name in ("one", "two", "three")]
        asked = [does(front, front.front.name) for front in (one, two, three)]
        assert sorted((await ask(one, 5)).given) == [("three", "three"), ("two", "two")]
        assert (await ask(two, 6)).silent == []
        assert asked == [[6], [5], [5, 6]]


async def test_errors_are_answers() -> None:
    async with site() as at:
        one, two, three = [await at.front(name) for name in ("one", "two", "three")]
        does(two, NotReasoningError("no thought"))
        does(three, RuntimeError("a bug"))
        given = dict((await ask(one)).given)
        assert isinstance(given["two"], NotReasoningError)
        assert isinstance(given["three"], ServingError)
        del two.front.handlers["do"]
        assert "update it" in str(dict((await ask(one)).given)["two"])


async def test_who_is_silent_is_named() -> None:
    async with site() as at:
        one, two = await at.front("one"), await at.front("two")
        does(two, 1)
        two.die()
        await at.passes(1)
        asking = one.front.ledger.spawn(ask(one))
        await at.passes(2.5)
        assert (asking.result().given, asking.result().silent) == ([], ["two"])
        await at.passes(15)
        assert (await ask(one)).silent == [], "it is not there any more"


async def test_a_front_that_comes_back_gets_what_it_is_asked_then() -> None:
    async with site() as at:
        one, two = await at.front("one"), await at.front("two")
        asked = does(two, 1)
        two.die()
        await at.passes(15)
        at.cluster.cut_off.clear()
        await at.passes(3)
        assert (await ask(one, 7)).given == [("two", 1)]
        assert asked == [7]


async def test_orders_of_the_next_ledger_are_not_mistaken_for_old_ones() -> None:
    async with site() as at:
        one, two = await at.front("one"), await at.front("two")
        asked = does(two, 1)
        for number in range(3):
            await ask(one, number)
        await at.lose_ledger()
        assert (await ask(one, 3)).given == [("two", 1)]
        assert asked == [0, 1, 2, 3]


KEYS = st.builds(SettingKey, st.just("preset"), st.sampled_from(["chat", "small", None]))
SETTINGS = st.builds(
    Setting, st.tuples(st.integers(1, 5), st.sampled_from(["a", "b"])), st.integers()
)


@given(st.lists(st.tuples(KEYS, SETTINGS), unique_by=lambda each: each[1].version), st.randoms())
def test_fronts_agree_in_whatever_order_they_hear_of_settings(
    said: list[tuple[SettingKey, Setting]], random: Any
) -> None:
    one, two = KeptSettings(), KeptSettings()
    for key, setting in said:
        one.merge({key: setting})
    for key, setting in random.sample(said, len(said)):
        two.merge({key: setting})
        two.merge({key: setting})
    assert one.all() == two.all()
    of_all = one.all().get(SettingKey("preset", None))
    for key, setting in one:
        assert setting == max(
            (each for other, each in said if other == key), key=lambda each: each.version
        )
        assert of_all is None or setting.version >= of_all.version
    assert [each.version for _, each in one] == sorted(each.version for _, each in one)


async def test_settings_outlive_the_ledger() -> None:
    async with site() as at:
        one = await at.front("one")
        key, setting = SettingKey("template", "chat"), Setting((1, "x"), "chatml")
        one.front.known.merge({key: setting})
        await at.lose_ledger()
        assert at.ledger._settings.all() == {key: setting}
        two = await at.front("two")
        heard: list[Any] = []

        async def learn(settings: Any) -> None:
            heard.append(settings)

        two.front.handlers["settings"] = learn
        await at.lose_ledger()
        await quiet()
        assert {key: setting} in heard
