/*
 * sites.c: see sites.h. A site is lines "function (file:line)"; PyTorch's own files are under
 * torch/.
 */
#include <tools/analysis/sites.h>

#include <stdlib.h>
#include <string.h>

size_t site_frame(const pleat_trace *trace, uint32_t site, const char **frame)
{
    const char *text = pleat_trace_site(trace, site);
    *frame = text;
    for (const char *line = text; *line != '\0';) {
        size_t length = strcspn(line, "\n");
        if (memmem(line, length, " (torch/", 8) == NULL) {
            *frame = line;
            return length;
        }
        line += length + (line[length] == '\n');
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
