"""Keeps one program running: starts it, reads what it prints, and starts it again when it ends."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping

from sordino.flower.logs import JsonLog
from sordino.protocol import UserError

Tell = Callable[[str], None]
# Seconds before a process is started again: at first, and at most.
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 30.0
# Seconds after which a process that runs counts as stable: the pause is short again.
STABLE = 60.0
# Seconds that a process has to end when it is asked to.
ENDING = 15.0
# Exit code of a program whose input is wrong; another start does not help.
BAD_INPUT = 2


class SupervisedProcess:
    """Runs one program and starts it again when it ends. It holds a process."""

    def __init__(
        self, name: str, command: list[str], env: Mapping[str, str], log: JsonLog, tell: Tell
    ) -> None:
        """Creates it; `look` starts the program.

        Args:
            name: Name of the program, for messages.
            command: How it is started.
            env: Its environment.
            log: Receives the lines that it prints.
            tell: Called with a sentence when it is started again.
        """
        self.name = name
        self.starts = 0
        self._command = command
        self._env = dict(env)
        self._log = log
        self._tell = tell
        self._process: subprocess.Popen[bytes] | None = None
        self._pause = FIRST_PAUSE
        self._began = 0.0
        self._next = 0.0

    def look(self) -> None:
        """Starts the program if it does not run.

        Raises:
            UserError: It ended because its input is wrong, which another start does not mend.
        """
        # A process that has run for long has no lasting fault, so its next pause is short again.
        if self.is_running:
            if self.age > STABLE:
                self._pause = FIRST_PAUSE
            return
        if self._process is not None:
            self._note_end(self._process.returncode)
        if time.monotonic() >= self._next:
            self._start()

    def _note_end(self, code: int) -> None:
        self._process = None
        # A loop of starts would hide the message that says what to correct.
        if code == BAD_INPUT:
            raise UserError(f"the {self.name} cannot be started: its log says why.")
        self._next = time.monotonic() + self._pause
        self._tell(f"The {self.name} ended ({code}); it is started again in {self._pause:g} s.")
        # A growing pause: a program that always fails must not fill disk and log.
        self._pause = min(self._pause * 2.0, LONGEST_PAUSE)

    def _start(self) -> None:
        self._process = subprocess.Popen(
            self._command, env=self._env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        self._began = time.monotonic()
        self.starts += 1
        # Read all the time: a full pipe would stop the program.
        if self._process.stdout is not None:
            self._log.follow(self.name, self._process.stdout)

    @property
    def is_running(self) -> bool:
        """Whether the program runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def age(self) -> float:
        """Seconds since the program was started."""
        return time.monotonic() - self._began

    def kill(self) -> None:
        """Ends the program at once; the next look starts it again."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        """Ends the program with SIGTERM, and with SIGKILL if it does not end in time."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(ENDING)
        except subprocess.TimeoutExpired:
            self.kill()
