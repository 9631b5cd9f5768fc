/*
 * version.c: `pleat version`.
 */
#include "../cli.h"

int cli_version(int argc, char **argv)
{
    if (argc > 1)
        return cli_bad_use("version", "takes no arguments, got '%s'", argv[1]);
    printf("pleat %s\n", pleat_version());
    return CLI_DONE;
}
