/*
 * ledger_folder.h: a test program's folder for the ledgers of tenants.
 */
#ifndef PLEAT_TESTS_LEDGER_FOLDER_H
#define PLEAT_TESTS_LEDGER_FOLDER_H

#include "folder.h"
#include "held.h"

static inline int open_ledger_folder(void **state)
{
    (void)state;
    return setenv("PLEAT_TENANTS_DIR", test_folder(), 1);
}

#endif
