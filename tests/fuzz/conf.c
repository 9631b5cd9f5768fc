/*
 * conf.c: fuzz target: the runtime's settings. Those that are taken are the same when they are
 * written as `pleat conf` writes them and read again.
 */
#include "fuzz.h"

#include <runtime/base/conf.h>

static void write_settings(const pleat__conf *conf, char *text, size_t size)
{
    size_t used = 0;
    for (size_t i = 0;; i++) {
        pleat__conf_line line = pleat__conf_line_of(conf, i);
        if (line.key == NULL)
            return;
        used += (size_t)snprintf(text + used, size - used, "%s%s:%s", i > 0 ? "," : "", line.key,
                                 line.value);
        FUZZ_CHECK(used < size, "%zu bytes of settings", used);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    pleat__conf conf, again;
    char written[4096];
    char *text = malloc(size + 1);
    FUZZ_CHECK(text != NULL, "no memory for %zu bytes", size);
    memcpy(text, data, size);
    text[size] = '\0';
    pleat_result result = pleat__conf_read(text, &conf);
    FUZZ_CHECK(result == PLEAT_OK || result == PLEAT_E_INVALID, "%s", pleat_result_name(result));
    if (result == PLEAT_OK) {
        write_settings(&conf, written, sizeof written);
        FUZZ_CHECK(pleat__conf_read(written, &again) == PLEAT_OK, "%s: %s", written,
                   pleat_last_error()->text);
        for (size_t i = 0; pleat__conf_line_of(&conf, i).key != NULL; i++)
            FUZZ_CHECK(strcmp(pleat__conf_line_of(&conf, i).value,
                              pleat__conf_line_of(&again, i).value) == 0,
                       "%s of %s", pleat__conf_line_of(&conf, i).key, text);
    }
    free(text);
    return 0;
}
