"""Threads that learn and save while another answers."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from opentta.errors import OpenttaError

log = logging.getLogger("opentta.serve")

PAUSE = 1.0  # seconds after an error, and at most between looks for work


class Worker:
    """Calls ``work`` as long as there is some; ``wake`` says that there may be.

    ``what`` it does is the name of its thread, and stands in the log where it fails.
    """

    def __init__(self, work: Callable[[], bool], what: str) -> None:
        self._work, self._what, self.errors = work, what, 0
        self._wake, self._ends = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"opentta-{what}", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def wake(self) -> None:
        """Images came."""
        self._wake.set()

    def stop(self) -> None:
        """End after the work that is done now."""
        self._ends.set()
        self._wake.set()
        self._thread.join()

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def _run(self) -> None:
        while not self._ends.is_set():
            self._wake.clear()
            try:
                busy = self._work()
            except Exception as error:  # a full disk, for one: answers go on, it is tried again
                self.errors += 1
                trace = None if isinstance(error, OpenttaError) else error
                log.error("%s failed, answers go on: %s", self._what, error, exc_info=trace)
                self._ends.wait(PAUSE)
                continue
            if not busy:
                self._wake.wait(PAUSE)
