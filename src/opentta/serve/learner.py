"""The thread that learns and saves while another answers."""

from __future__ import annotations

import logging
import threading

from opentta.errors import OpenttaError
from opentta.serve.host import Host

log = logging.getLogger("opentta.serve")

PAUSE = 1.0  # seconds after an error, and at most between looks for work


class Learner:
    """Calls ``host.work()`` as long as there is work; ``wake`` says that there may be some."""

    def __init__(self, host: Host) -> None:
        self._host, self.errors = host, 0
        self._wake, self._ends = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="opentta-learns", daemon=True)

    def start(self) -> None:
        """Begin to learn."""
        self._thread.start()

    def wake(self) -> None:
        """Images came."""
        self._wake.set()

    def stop(self) -> None:
        """End after the step that runs now."""
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
                busy = self._host.work()
            except Exception as error:  # a full disk, for one: answers go on, it is tried again
                self.errors += 1
                trace = None if isinstance(error, OpenttaError) else error
                log.error("learning or saving failed, answers go on: %s", error, exc_info=trace)
                self._ends.wait(PAUSE)
                continue
            if not busy:
                self._wake.wait(PAUSE)
