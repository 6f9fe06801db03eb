"""Knows how the API's token counts, vLLM's own metrics and the stream have to agree, phase by phase.

Per request with a prompt of P tokens, C of them from the cache, and an answer of G tokens, nothing
preempted and nothing speculated: P - C tokens are prefilled, and G - 1 passes decode (the first token
comes out of the prefill). What makes it a bound instead:

* a preempted request computes lost tokens again, and takes one token from that instead of from a decode;
* a draft that is accepted saves a decode; at an answer's end it may be accepted in vain;
* of a request that was hung up on only a least and a most number of tokens is known.
"""

from __future__ import annotations

from dataclasses import dataclass

from soak.act import Act
from soak.findings import Findings
from soak.phases import PhaseResult
from soak.stream_check import PhaseSums

__all__ = ["TokenSums", "check_tokens"]

DRAFTS = 3
MOST_LENGTH = 2048

EXACT_PREFILL = "prefill tokens are exactly prompt minus cached tokens (no preemption, no hang-up)"
EXACT_DECODE = "decodes are exactly answer tokens minus one per answer (no preemption, hang-up, draft)"
DRAFT_DECODE = "decodes are answer tokens minus one per answer minus accepted drafts, give or take an end"
LEAST_PREFILL = "prefill tokens are no fewer than prompt minus cached tokens (preemption or hang-up)"
MOST_PREFILL = "prefill tokens are no more than with every preempted or hung-up request computed whole"
DECODE_BOUNDS = "decodes lie between what was seen and what was asked for (preemption or hang-up)"
VLLM_PROMPT = "vLLM's prompt_tokens_total rose by the API's prompt tokens (no hang-up)"
VLLM_ANSWERS = "vLLM's generation_tokens_total rose by the API's answer tokens (no hang-up)"
VLLM_HITS = "vLLM's prefix_cache_hits_total rose by the API's cached tokens (no preemption, no hang-up)"
VLLM_DONE = "vLLM's request_success_total rose by the answers (no hang-up)"
VLLM_STEPS = "vLLM's count of iterations with tokens rose by the passes that gave one (no hang-up)"
VLLM_STEP_BOUNDS = "vLLM's count of iterations with tokens rose by no more than the passes (hang-up)"
WITNESS_TOKENS = "vLLM's generation_tokens_total rose by the tokens that the witness saw sampled (no drafts)"
WITNESS_RESUMED = "no more requests were resumed than vLLM says were preempted"
ANSWERED = "every request was answered"


@dataclass
class TokenSums:
    """The API's side of one phase or of many."""

    requests: int = 0
    hung_up: int = 0
    prompt: int = 0
    cached: int = 0
    completion: int = 0
    preempted: int = 0
    accepted: int = 0

    def __iadd__(self, other: TokenSums) -> TokenSums:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)
        return self


def check_tokens(act: Act, phases: list[PhaseSums], findings: Findings) -> list[TokenSums]:
    """Compare every phase of ``act``; return the API's sums of each."""
    found = []
    for result, sums in zip(act.phases, phases, strict=True):
        where = f"{act.name}, {result.phase.name}, messages {result.first} to {result.last}"
        findings.note(ANSWERED, not result.failures, f"{where}: {result.failures[:3]}")
        found.append(_check(result, sums, where, findings))
    return found


def _check(result: PhaseResult, sums: PhaseSums, where: str, findings: Findings) -> TokenSums:
    api = _sums(result)
    rises = result.counters
    computed, decodes = api.prompt - api.cached, api.completion - api.requests
    findings.note(WITNESS_RESUMED, sums.resumed <= api.preempted, f"{where}: {sums} {api}")
    if api.hung_up or result.failures:
        _hang_up_bounds(result, sums, api, where, findings)
        return api
    _vllm(sums, api, rises, where, findings)
    seen = f"{where}: {sums} {api}"
    if api.preempted:
        findings.note(LEAST_PREFILL, sums.prefill_tokens >= computed, seen)
        findings.note(MOST_PREFILL, sums.prefill_tokens <= computed + MOST_LENGTH * api.preempted, seen)
    else:
        findings.note(EXACT_PREFILL, sums.prefill_tokens == computed, seen)
    vain = sums.decodes - (decodes - api.accepted)
    if api.accepted:
        least = -api.preempted
        findings.note(DRAFT_DECODE, least <= vain <= DRAFTS * (api.requests + api.preempted), seen)
    elif api.preempted:
        findings.note(DECODE_BOUNDS, -api.preempted <= vain <= 0, seen)
    else:
        findings.note(EXACT_DECODE, vain == 0, seen)
    return api


def _vllm(sums: PhaseSums, api: TokenSums, rises: dict[str, float], where: str, findings: Findings) -> None:
    def same(rule: str, name: str, expected: int) -> None:
        rose = rises.get(name, 0.0)
        findings.note(rule, rose == expected, f"{where}: {name} rose by {rose}, expected {expected}")

    same(VLLM_PROMPT, "prompt_tokens_total", api.prompt)
    same(VLLM_ANSWERS, "generation_tokens_total", api.completion)
    same(VLLM_DONE, "request_success_total", api.requests)
    if not api.preempted:
        same(VLLM_HITS, "prefix_cache_hits_total", api.cached)
    if not sums.witnessed:
        return
    same(VLLM_STEPS, "iteration_tokens_total_count", sums.with_samples)
    if not api.accepted:
        same(WITNESS_TOKENS, "generation_tokens_total", sums.samples)


def _hang_up_bounds(
    result: PhaseResult, sums: PhaseSums, api: TokenSums, where: str, findings: Findings
) -> None:
    """A request that was hung up on may have run until its limit, and its cached tokens are known."""
    whole = [answer for answer in result.answers if not answer.hung_up]
    hung = [answer for answer in result.answers if answer.hung_up]
    most_resumed = api.preempted
    least = sum(answer.completion - 1 for answer in whole)
    least += sum(max(0, answer.completion - 1) for answer in hung) - most_resumed - api.accepted
    most = sum(answer.completion - 1 for answer in whole) + sum(answer.limit for answer in hung)
    seen = f"{where}: {sums} {api}, {len(result.failures)} failed"
    computed = api.prompt - api.cached
    hits = max(api.cached, int(result.counters.get("prefix_cache_hits_total", 0.0)))
    findings.note(LEAST_PREFILL, sums.prefill_tokens >= api.prompt - hits, seen)
    lost = MOST_LENGTH * (api.preempted + len(result.failures))
    findings.note(MOST_PREFILL, sums.prefill_tokens <= computed + lost, seen)
    findings.note(DECODE_BOUNDS, least <= sums.decodes <= most + MOST_LENGTH * len(result.failures), seen)
    rose = result.counters.get("iteration_tokens_total_count", 0.0)
    findings.note(VLLM_STEP_BOUNDS, rose <= sums.passes, f"{where}: rose by {rose}, {sums.passes} passes")


def _sums(result: PhaseResult) -> TokenSums:
    rises = result.counters
    return TokenSums(
        requests=len(result.answers),
        hung_up=sum(answer.hung_up for answer in result.answers),
        prompt=sum(answer.prompt for answer in result.answers),
        cached=sum(answer.cached for answer in result.answers),
        completion=sum(answer.completion for answer in result.answers),
        preempted=int(rises.get("num_preemptions_total", 0.0)),
        accepted=int(rises.get("spec_decode_num_accepted_tokens_total", 0.0)),
    )
