"""Owner tokens are drawn in bulk, and no two attempts get the same one."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from oncekey.engine.clock import new_owner


def test_no_two_threads_get_the_same_token() -> None:
    with ThreadPoolExecutor(8) as pool:
        drawn = [
            token
            for tokens in pool.map(lambda _: [new_owner() for _ in range(2_000)], range(8))
            for token in tokens
        ]
    assert len(set(drawn)) == len(drawn) == 16_000
    assert {len(token) for token in drawn} == {16}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_draws_its_own_tokens() -> None:
    """I1: with the same token, each of two processes would take the other's claim for its own."""
    new_owner()  # now there are drawn tokens to inherit
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, b"".join(new_owner() for _ in range(50)))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        theirs = pipe.read()
    assert os.waitpid(child, 0)[1] == 0
    ours = {new_owner() for _ in range(500)}
    assert not ours & {theirs[i : i + 16] for i in range(0, len(theirs), 16)}
    assert len(theirs) == 50 * 16
