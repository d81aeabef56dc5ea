"""Signals: the first is noted, the second ends at once, ignored ones stay ignored, handlers are put back."""

import os
import signal

import pytest

from dagrl.trainer.stopping import StoppedNow, StopRequest


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_noted_and_the_second_raises(number: int) -> None:
    before = signal.getsignal(number)
    heard: list[int] = []
    with StopRequest(heard.append) as stop:
        os.kill(os.getpid(), number)
        assert stop.signal == number
        assert heard == [number]
        with pytest.raises(StoppedNow) as caught:
            os.kill(os.getpid(), number)
    assert caught.value.number == number
    assert signal.getsignal(number) is before


def test_the_second_may_be_another_signal() -> None:
    with StopRequest():
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(StoppedNow) as caught:
            os.kill(os.getpid(), signal.SIGTERM)
    assert caught.value.number == signal.SIGTERM


def test_a_signal_that_the_process_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with StopRequest() as stop:
            os.kill(os.getpid(), signal.SIGINT)
            assert stop.signal is None
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
