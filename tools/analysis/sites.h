/*
 * sites.h: places in the program, of which a trace has the stack frames.
 */
#ifndef PLEAT_TOOLS_SITES_H
#define PLEAT_TOOLS_SITES_H

#include <pleat/trace.h>

/* Of a site the frame that says most: the innermost outside of PyTorch's own code, else the
 * innermost. Returns its length; it is not zero-terminated. Site 0 has length 0. */
size_t site_frame(const pleat_trace *trace, uint32_t site, const char **frame);
/* The site of each of the trace's requests, in its order, zeros where it is not known: an array
 * of the C library's to be freed; NULL: no memory. */
uint32_t *sites_of_requests(const pleat_trace *trace);

#endif
