"""Signals to a command that waits for another program.

What a terminal sends, and `timeout`, comes to the whole process group, and so to a program in it by itself; what is sent
to the command alone is passed on. Nothing of a signal says which of the two it was: so a process is kept in the group
that does nothing, and a signal that has ended it was the group's.
"""

import contextlib
import functools
import os
import signal
import subprocess
import sys
import time

# What ends a command. A terminal that goes sends SIGHUP, but to nothing that `nohup` has begun.
ENDING = {signal.SIGTERM} | ({signal.SIGHUP} if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN else set())
WAITED = {signal.SIGINT, signal.SIGCHLD} | ENDING
INTERRUPTED = 128 + signal.SIGINT  # as a shell says it
GROUP = 0.2  # seconds in which a signal has come to all of a group, where `timeout` sends it to one of it first
GRACE = 5  # seconds that a program has to end by what ends the command


def restore_ignored():
    """Those that Python ignores from its start on: a program expects what they do."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)


def restore():
    """Those and what is waited for here."""
    restore_ignored()
    for number in WAITED:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, WAITED)


class NotBegunError(Exception):
    """Why a program was not begun, as an OSError."""

    def __init__(self, problem):
        super().__init__(str(problem))
        self.problem = problem


class Witness:
    """The process in the group that does nothing. It ends with this one, however that ends."""

    def __init__(self):
        self.held = None
        self.begin()

    def begin(self):
        waited, self.held = os.pipe()
        self.process = os.fork()
        if not self.process:
            try:
                os.close(self.held)
                restore()
                os.read(waited, 1)
            finally:
                os._exit(0)
        os.close(waited)

    def end(self):
        """How it ended, by the signal's number below 0."""
        if self.held is None:
            return 0
        os.close(self.held)
        self.held = None
        os.kill(self.process, signal.SIGCONT)  # the group may have been stopped
        return os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1])

    def has_had(self, number):
        """Whether a signal that has just come to this process was sent to the group. What came meanwhile is the same."""
        time.sleep(GROUP)
        ended_by = self.end()
        self.begin()
        if number in signal.sigpending():
            signal.sigwait({number})
        return ended_by == -number


def is_apart(program):
    """Whether a program has left this process's group, or has ended: `timeout` is in a group of its own."""
    try:
        return os.getpgid(program.pid) != os.getpgrp()
    except ProcessLookupError:
        return True


def waited_for(program, witness):
    """Waits for a program's end, with WAITED blocked; whether a SIGINT came before. What is to end this
    process does."""
    interrupted = False
    while program.poll() is None:
        number = signal.sigwait(WAITED)
        if number == signal.SIGCHLD:
            continue
        if not witness.has_had(number) or is_apart(program):
            program.send_signal(number)
        if number in ENDING:
            with contextlib.suppress(subprocess.TimeoutExpired):
                program.wait(GRACE)
            end(number)
        interrupted = True
    return interrupted


def run(words, variables, beside):
    """How a program in this process's group ended, and whether a SIGINT came before, which is the program's to act on.
    `beside` is entered meanwhile. When this process is to end the program goes. NotBegunError."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # where it is ignored no end is told
    signal.pthread_sigmask(signal.SIG_BLOCK, WAITED)
    witness = Witness()
    try:
        try:
            program = subprocess.Popen(words, env=variables, preexec_fn=restore)
        except OSError as problem:
            raise NotBegunError(problem) from None
        try:
            with beside:
                return waited_for(program, witness), program.returncode
        except BaseException:
            program.kill()
            program.wait()
            raise
    finally:
        witness.end()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, WAITED)


def run_apart(words, **named):
    """As subprocess.run, in a group of its own, which ends as a whole when this process is to: a compiler's parts do not end
    with it, nor are its files removed where it is killed."""
    signal.pthread_sigmask(signal.SIG_BLOCK, WAITED)  # until what is begun can be ended
    try:
        with subprocess.Popen(words, start_new_session=True, preexec_fn=restore, **named) as process:
            try:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, WAITED)
                output = process.communicate()[0]
            except BaseException:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGTERM)
                raise
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, WAITED)
    return subprocess.CompletedProcess(words, process.returncode, output)


def end(number, frame=None):
    sys.exit(128 + number)


def end_in_order():
    """From now on what ends this process has it remove what it made."""
    for number in ENDING:
        signal.signal(number, end)


def ending_by_interrupts(main):
    """A command that a SIGINT ends does so without a traceback, and by the signal, as it does for SystemExit(INTERRUPTED): a
    shell goes on in a loop after one that ends otherwise."""

    @functools.wraps(main)
    def ending(*arguments):
        try:
            main(*arguments)
        except (KeyboardInterrupt, SystemExit) as ended:
            if getattr(ended, "code", INTERRUPTED) != INTERRUPTED:
                raise
            with contextlib.suppress(AttributeError, OSError):  # it may be closed
                sys.stdout.flush()
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
            sys.exit(INTERRUPTED)  # the first process of a container is ended by none

    return ending
