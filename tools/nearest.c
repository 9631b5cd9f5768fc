/*
 * nearest.c: see nearest.h.
 */
#include <tools/cli.h>
#include <tools/nearest.h>

#include <runtime/base/nearest.h>
#include <stdio.h>

int nearest_refuse(const char *command, const char *kind, const char *name,
                   const char *const *names, size_t count)
{
    char all[512] = "", near[PLEAT__NEAREST_TEXT];
    size_t used = 0;
    pleat__nearest found = pleat__nearest_to(name);
    for (size_t i = 0; i < count; i++) {
        pleat__nearest_try(&found, names[i]);
        if (used < sizeof all)
            used += (size_t)snprintf(all + used, sizeof all - used, " %s", names[i]);
    }
    return cli_bad_use(command, "there is no %s '%s'; there are:%s%s", kind, name, all,
                       pleat__nearest_text(&found, near));
}
