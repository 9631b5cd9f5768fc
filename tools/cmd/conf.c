/*
 * conf.c: `pleat conf`: the runtime's settings, what they are now and what they do.
 */
#include <tools/cli.h>
#include <tools/json.h>
#include <tools/options.h>

#include <runtime/base/conf.h>

static void print_json(const pleat__conf *conf)
{
    json_writer json;
    json_begin(&json, stdout);
    json_object(&json, NULL);
    for (size_t i = 0;; i++) {
        pleat__conf_line line = pleat__conf_line_of(conf, i);
        if (line.key == NULL)
            break;
        json_string(&json, line.key, line.value);
    }
    json_end_object(&json);
    json_finish(&json);
}

static void print_lines(const pleat__conf *conf)
{
    for (size_t i = 0;; i++) {
        pleat__conf_line line = pleat__conf_line_of(conf, i);
        if (line.key == NULL)
            break;
        printf("%-9s  %-5s  %s\n", line.key, line.value, line.text);
    }
}

int cli_conf(int argc, char **argv)
{
    bool json = false;
    pleat__conf conf;
    const cli_option table[] = {OPTION_JSON(&json), OPTION_END};
    const cli_usage usage = {
        .command = "conf",
        .synopsis = "[options]",
        .text = "Prints the settings that PLEAT_CONF=key:value,... changes, as they are now.\n"
                "Sizes take k, m or g; switches are on or off.\n",
        .options = table,
    };
    int code = cli_read(argc, argv, &usage, NULL);
    if (code != CLI_GO_ON)
        return code;
    if (pleat__conf_read(NULL, &conf) != PLEAT_OK) {
        cli_failed("conf", PLEAT_E_INVALID);
        return CLI_BAD_USE;
    }
    if (json)
        print_json(&conf);
    else
        print_lines(&conf);
    return CLI_DONE;
}
