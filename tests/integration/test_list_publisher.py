"""The list publisher is told apart from the real one by its missing socket only."""

from __future__ import annotations

from raw_stream import join, one_pass, publishing, reading

from forwardpass.publish.publisher import Publisher
from forwardpass.testing.publishers import ListPublisher


def scenario(publisher: Publisher) -> list[bool]:
    """Publish through every state a publisher can be in."""
    accepted = [publisher.publish(one_pass(1)), publisher.publish(one_pass(2))]
    publisher.pause()
    accepted.append(publisher.publish(one_pass(3)))
    publisher.resume()
    accepted.append(publisher.publish(one_pass(4)))
    publisher.shutdown(5)
    publisher.shutdown(5)
    accepted.append(publisher.publish(one_pass(5)))
    return accepted


def test_the_fake_accepts_numbers_and_counts_like_the_real_publisher() -> None:
    """The same calls give the same answers, the same bytes on the wire and the same counts."""
    fake = ListPublisher(0, "77")
    with publishing() as real, reading(real.port) as reader:
        begin = join(real, reader)
        for _ in range(begin):
            fake.publish(one_pass())
        answers = scenario(real), scenario(fake)
        received = [reader.read(5.0) for _ in range(3)]

        assert answers[0] == answers[1]
        assert [frames.payload for frames in received if frames is not None] == fake.payloads[begin:]
        assert real.counts() == fake.counts()
