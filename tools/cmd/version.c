/*
 * version.c: `pleat version`.
 */
#include "../cli.h"

#include <string.h>

int cli_version(int argc, char **argv)
{
    if (argc == 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
        printf("usage: pleat version\n\nPrints the version.\n");
        return CLI_DONE;
    }
    if (argc > 1)
        return cli_bad_use("version", "takes no arguments, got '%s'", argv[1]);
    printf("pleat %s\n", pleat_version());
    return CLI_DONE;
}
