/*
 * commas.h: a locale of a test's own whose numbers have a comma where Pleat's texts have a point.
 */
#ifndef PLEAT_TESTS_COMMAS_H
#define PLEAT_TESTS_COMMAS_H

#include "folder.h"

#include <locale.h>
#include <stdbool.h>

/* Makes it, and has the process use it; tests are skipped where the system makes no locales. */
static inline void test_commas_begin(void)
{
    char folder[96], command[512], text[16];
    snprintf(folder, sizeof folder, "%s/locale", test_folder());
    snprintf(command, sizeof command,
             "mkdir '%s' && cd '%s' && printf 'LC_NUMERIC\\ndecimal_point \",\"\\nthousands_sep "
             "\".\"\\ngrouping 3;3\\nEND LC_NUMERIC\\n' >source && localedef -c -i source ./commas "
             ">made 2>&1; test -e commas/LC_NUMERIC",
             folder, folder);
    bool made = system(command) == 0;
    assert_int_equal(setenv("LOCPATH", folder, 1), 0);
    bool used = made && setlocale(LC_NUMERIC, "commas") != NULL;
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    assert_int_equal(system(command), 0);
    if (!made)
        skip();
    assert_true(used);
    snprintf(text, sizeof text, "%.1f", 0.5);
    assert_string_equal(text, "0,5");
}

static inline void test_commas_end(void)
{
    setlocale(LC_NUMERIC, "C");
    unsetenv("LOCPATH");
}

#endif
