"""Answers at once, steps on whole groups: what a call does under a policy of groups."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from opentta.adapter.buffer import Buffer
from opentta.adapter.images import bad_images
from opentta.types import Prediction


def gathered(adapter: Any, images: Tensor, buffer: Buffer) -> Prediction:
    """One call, cut at the boundaries of groups.

    A whole group that came in one call is answered by its own first pass; other samples are
    answered as they come and wait in the buffer. Bad images are answered and never enter it. A
    whole group that is not learned from, by ``every`` or ``budget``, is answered and left.
    """
    answers: list[Prediction] = []
    steps: list[Prediction] = []
    rest = images
    spending = adapter.serving.spending
    if adapter._screens:
        bad = bad_images(images)
        if bool(bad.any()):  # read back from the device
            answers, rest = [adapter._served(images)], images[~bad]
            spending.images += len(images) - len(rest)
    if not adapter.serving.learns:
        spending.images += len(rest)
        return joined(
            answers or [adapter._served(images)], [], sweep=adapter.score_sweep is not None
        )
    to_answer = not answers
    if buffer.size not in (None, images.shape[2:]):  # a group has one size of image
        group = buffer.take()
        steps += [adapter._stepped(group)] if spending.due(group) else []
    while len(rest):
        room = buffer.group - len(buffer)
        piece, rest = rest[:room], rest[room:]
        spending.images += len(piece)
        if len(piece) == buffer.group and spending.due(piece):
            steps.append(adapter._stepped(piece))
            answers += steps[-1:] if to_answer else []
            continue
        answers += [adapter._served(piece)] if to_answer else []
        if len(piece) == buffer.group:
            continue
        buffer.push(piece)
        if len(buffer) == buffer.group:
            group = buffer.take()
            steps += [adapter._stepped(group)] if spending.due(group) else []
    return joined(answers, steps, sweep=adapter.score_sweep is not None)


def joined(
    answers: Sequence[Prediction], steps: Sequence[Prediction], *, sweep: bool
) -> Prediction:
    """The answers of one call, piece by piece, and what its steps reported."""
    logits = torch.cat([out.logits for out in answers])
    nothing = torch.zeros((), dtype=torch.bool, device=logits.device)
    details = {"steps": torch.tensor(len(steps), device=logits.device)}
    for name in ("reset", "guard"):
        told = [out.details[name].any() for out in steps if name in out.details]
        details[name] = torch.stack(told).any() if told else nothing
    if sweep:
        parts = [out.details["ood_score_by_alpha"] for out in answers]
        details["ood_score_by_alpha"] = torch.cat(parts)
    return Prediction(logits, torch.cat([out.ood_score for out in answers]), details)
