"""llama-server's `/infill`, from body to answer."""

from dataclasses import replace

from enginebay.apis.extras import passed_on
from enginebay.chat.answer.running import RunningRequest
from enginebay.chat.plan.repository_infill import Gap, SourceFile, gap_prompt
from enginebay.chat.schemas.completion_bodies import CompletionRequest
from enginebay.chat.schemas.read_body import read_body
from enginebay.serving.answer import Answer
from enginebay.serving.asked import Asked, Names
from enginebay.serving.serving import Serving
from enginebay_llama_server.bodies import InfillRequest
from enginebay_llama_server.composer import InfillComposer

_NAMES = Names({"max_tokens": "n_predict"})
_NO_PLACE = ("suffix", "best_of", "n_probs", "n_cmpl", "prompt_logprobs", "truncate_prompt_tokens")


def asked_infill(body: InfillRequest) -> Asked[CompletionRequest]:
    """The completion that is asked for, so far without a prompt of tokens."""
    kept, ignored = passed_on(body.model_extra, without=_NO_PLACE)
    own = body.model_dump(include={"model", "stream", "timings_per_token", "return_progress"})
    with _NAMES.in_errors():
        completion = read_body(CompletionRequest, {**kept, **own, "prompt": body.prompt})
    if completion.max_tokens == 0:  # the prompt is only read
        completion.echo = True
    return Asked(body=completion, names=_NAMES, ignored=tuple(ignored))


async def infilled(
    serving: Serving, body: InfillRequest, asked: Asked[CompletionRequest], running: RunningRequest
) -> Answer[InfillComposer]:
    """The answer that fills the gap; it runs when it is read."""
    model = await serving.leases.prompted(running, body.model)
    completion = asked.body
    gap = Gap(
        prefix=body.input_prefix,
        suffix=body.input_suffix,
        written=body.prompt,
        files=[SourceFile(file.filename, file.text) for file in body.input_extra],
    )
    prompt = await gap_prompt(model, gap, completion.max_tokens)
    stops = [*(completion.stop_token_ids or ()), *prompt.stop_token_ids]
    tokens = {"model": model.name, "prompt": prompt.token_ids, "stop_token_ids": stops}
    asked = replace(asked, body=completion.model_copy(update=tokens))
    planned = await serving.plan_completion(asked, running, f"infill-{running.id}")
    planned = replace(planned, plan=replace(planned.plan, cut=prompt.cut))
    composer = InfillComposer(
        planned.head,
        planned.generation.counter,
        cut=prompt.cut > 0,
        fields=body.response_fields,
        with_tokens=body.return_tokens,
        timings_per_token=body.timings_per_token,
    )
    return Answer(planned, composer)
