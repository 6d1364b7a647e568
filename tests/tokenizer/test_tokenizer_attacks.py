"""What the bus may lose or repeat, and what must not stay behind for it."""

from __future__ import annotations

import pytest

from phloem_model import ModelFiles
from phloem_proto.messages import OpenStream
from phloem_tokenizer import streams as stream_module
from phloem_tokenizer.streams import OVERDUE_S, Streams
from phloem_tokenizer.vocab import Vocabulary
from tests.tokenizer.test_tokenizer_service import RID, until, world

OTHER = b"o" * 16


@pytest.fixture
def streams(byte_vocabulary: Vocabulary) -> Streams:
    return Streams(byte_vocabulary, [258])


def test_a_stream_whose_cancel_was_lost_goes_after_its_deadline(streams: Streams) -> None:
    streams.open(OpenStream(RID, 1, "g1", deadline_ms=2000), 10.0)
    streams.open(OpenStream(OTHER, 1, "g1"), 10.0)
    assert streams.drop_overdue(12.0 + OVERDUE_S - 0.1) == 0
    assert streams.drop_overdue(12.0 + OVERDUE_S) == 1
    assert streams.live() == [OTHER]


def test_a_later_attempt_brings_its_own_deadline(streams: Streams) -> None:
    streams.open(OpenStream(RID, 1, "g1", deadline_ms=2000), 10.0)
    streams.open(OpenStream(RID, 2, "g1", deadline_ms=9000), 11.0)
    assert streams.drop_overdue(19.0) == 0
    assert streams.drop_overdue(20.0 + OVERDUE_S) == 1


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_the_service_drops_them_by_itself(tiny: ModelFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "OVERDUE_S", 0.0)
    async with world(tiny) as there:
        assert (await there.open(deadline_ms=1)).error is None
        assert there.streams() == 1
        await until(lambda: there.streams() == 0)
