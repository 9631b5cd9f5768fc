/*
 * sites.c: see sites.h. A site is lines "function (file:line)", before them its annotations in
 * double quotes; PyTorch's own files are under torch/.
 */
#include <tools/analysis/sites.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *next_line(const char *line)
{
    size_t length = strcspn(line, "\n");
    return line + length + (line[length] == '\n');
}

static const char *first_frame(const char *text)
{
    while (*text == '"')
        text = next_line(text);
    return text;
}

const char *site_annotations(const pleat_trace *trace, uint32_t site, char text[SITE_TEXT_SIZE])
{
    size_t used = 0;
    for (const char *line = pleat_trace_site(trace, site); *line == '"'; line = next_line(line)) {
        size_t length = strcspn(line, "\n");
        if (used + length + 3 > SITE_TEXT_SIZE)
            break;
        used += (size_t)snprintf(text + used, SITE_TEXT_SIZE - used, "%s%.*s", used > 0 ? ", " : "",
                                 (int)length, line);
    }
    text[used] = '\0';
    return text;
}

size_t site_frame(const pleat_trace *trace, uint32_t site, const char **frame)
{
    const char *text = first_frame(pleat_trace_site(trace, site));
    *frame = text;
    for (const char *line = text; *line != '\0'; line = next_line(line)) {
        size_t length = strcspn(line, "\n");
        if (memmem(line, length, " (torch/", 8) == NULL) {
            *frame = line;
            return length;
        }
    }
    return strcspn(text, "\n");
}

uint32_t *sites_of_requests(const pleat_trace *trace)
{
    const pleat_trace_event *events = pleat_trace_events(trace);
    uint32_t *sites = calloc(pleat_trace_request_count(trace) + 1u, sizeof *sites);
    for (size_t i = 0; sites != NULL && i < pleat_trace_event_count(trace); i++)
        if (events[i].kind == PLEAT_EVENT_ALLOC)
            sites[events[i].request] = events[i].site;
    return sites;
}
