/*
 * sites.h: places in the program, of which a trace has the stack frames, and what the program said
 * of the tensors that it made there (annotations).
 */
#ifndef PLEAT_TOOLS_SITES_H
#define PLEAT_TOOLS_SITES_H

#include <pleat/trace.h>

/* Of a site the frame that says most: the innermost outside of PyTorch's own code, else the
 * innermost. Returns its length; it is not zero-terminated. 0: the site has no frames. */
size_t site_frame(const pleat_trace *trace, uint32_t site, const char **frame);
#define SITE_TEXT_SIZE 1100
/* The annotations, each in double quotes, with commas between them; as many as fit whole. */
const char *site_annotations(const pleat_trace *trace, uint32_t site, char text[SITE_TEXT_SIZE]);
/* The site of each of the trace's requests, in its order, zeros where it is not known: an array
 * of the C library's to be freed; NULL: no memory. */
uint32_t *sites_of_requests(const pleat_trace *trace);

#endif
