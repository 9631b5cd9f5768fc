/*
 * child.h: processes that a test forks.
 */
#ifndef PLEAT_TESTS_CHILD_H
#define PLEAT_TESTS_CHILD_H

#include "test.h"

#include <signal.h>
#include <stdbool.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* Waits for a child, which ends with 0. */
static inline void assert_child_ends(pid_t child)
{
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

/* It has not ended by itself before. */
static inline void kill_child(pid_t child)
{
    int status;
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
}

/* A child that has done something by then, waits to be killed, and does not outlive the test. */
static inline pid_t start_child(bool (*does)(void *with), void *with)
{
    int said[2];
    char letter;
    assert_int_equal(pipe(said), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (!does(with) || write(said[1], "+", 1) != 1)
            _exit(1);
        for (;;)
            pause();
    }
    close(said[1]);
    assert_int_equal(read(said[0], &letter, 1), 1);
    close(said[0]);
    return child;
}

#endif
