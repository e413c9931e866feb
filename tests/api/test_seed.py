"""The same seed gives the same answer, whatever else the engine computes beside it."""

import threading
from typing import Any

from tests.support import Server

BODY: dict[str, Any] = {
    "prompt": "Once upon a time there was",
    "max_tokens": 24,
    "temperature": 0.8,
    "seed": 7,
    "n": 2,
}


def ask(server: Server, **fields: Any) -> list[str]:
    answer = server.http.post("/v1/completions", json={**BODY, **fields}).json()
    return [choice["text"] for choice in answer["choices"]]


def test_alone_and_in_company(demo: Server) -> None:
    alone = ask(demo)
    assert alone[0] != alone[1]
    assert ask(demo, seed=8) != alone
    answers: list[list[str]] = []
    start = threading.Barrier(7)

    def other(number: int) -> None:
        start.wait(60)
        ask(demo, prompt=f"{number} other words and more of them", seed=number, n=number)

    def same() -> None:
        start.wait(60)
        answers.append(ask(demo))

    threads = [threading.Thread(target=other, args=(number,)) for number in range(1, 5)]
    threads += [threading.Thread(target=same) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [alone] * 3
