/*
 * version.c: `pleat version`.
 */
#include <tools/json.h>
#include <tools/options.h>
#include <tools/report/page.h>

int cli_version(int argc, char **argv)
{
    bool as_json = false;
    json_writer json;
    const cli_option table[] = {OPTION_JSON(&as_json), OPTION_END};
    const cli_usage usage = {.command = "version",
                             .synopsis = "[--json]",
                             .text = "Prints the version.\n",
                             .options = table};
    int code = cli_read(argc, argv, &usage, NULL);
    if (code != CLI_GO_ON)
        return code;
    if (!as_json) {
        printf("pleat %s\n", pleat_version());
        return CLI_DONE;
    }
    json_begin(&json, stdout);
    json_object(&json, NULL);
    json_string(&json, "version", pleat_version());
    json_bool(&json, "draws_pages", page_can_draw()); /* asked by what wants a page at its end */
    json_end_object(&json);
    json_finish(&json);
    return CLI_DONE;
}
