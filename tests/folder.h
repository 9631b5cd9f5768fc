/*
 * folder.h: a folder for the files of a test program, which goes with all that is in it when the
 * program ends, whatever its failed tests left there.
 */
#ifndef PLEAT_TESTS_FOLDER_H
#define PLEAT_TESTS_FOLDER_H

#include "test.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char test_folder_path[64];
static pid_t test_folder_owner; /* not a process that a test forks */

static inline void test_folder_leave(void)
{
    char command[96];
    snprintf(command, sizeof command, "rm -rf '%s'", test_folder_path);
    if (getpid() == test_folder_owner && system(command) != 0)
        fprintf(stderr, "%s: it could not be removed\n", test_folder_path);
}

/* In memory where it can be: files of Pleat are synced, which takes ten milliseconds each on a disk
 * that others use. */
static inline const char *test_folder(void)
{
    if (test_folder_path[0] == '\0') {
        strcpy(test_folder_path, "/dev/shm/pleat-test-XXXXXX");
        if (mkdtemp(test_folder_path) == NULL)
            assert_non_null(mkdtemp(strcpy(test_folder_path, "/tmp/pleat-test-XXXXXX")));
        test_folder_owner = getpid();
        assert_int_equal(atexit(test_folder_leave), 0);
    }
    return test_folder_path;
}

#endif
