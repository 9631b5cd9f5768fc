/*
 * ledger_folder.h: a folder of a test's own for the ledgers of tenants, from the group's beginning
 * to its end.
 */
#ifndef PLEAT_TESTS_LEDGER_FOLDER_H
#define PLEAT_TESTS_LEDGER_FOLDER_H

#include "held.h"

#include <stdlib.h>

static char ledger_folder[64];

static inline int open_ledger_folder(void **state)
{
    (void)state;
    snprintf(ledger_folder, sizeof ledger_folder, "/dev/shm/pleat-test-XXXXXX");
    assert_non_null(mkdtemp(ledger_folder));
    return setenv("PLEAT_TENANTS_DIR", ledger_folder, 1);
}

static inline int close_ledger_folder(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -r '%s'", ledger_folder);
    return system(command);
}

#endif
