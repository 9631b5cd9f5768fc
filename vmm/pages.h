/*
 * pages.h: memory of the process in huge pages that are there already: what a device's driver can
 * pin in the time it takes to look at it. A page of 4 KiB at a time it pins some 1.6 GB/s.
 */
#ifndef PLEAT_VMM_PAGES_H
#define PLEAT_VMM_PAGES_H

#include <pleat/base.h>
#include <stdbool.h>

#define PLEAT__HUGE_PAGE_BYTES (UINT64_C(2) << 20)

/* `bytes`, a multiple of a huge page's, at such an address, each page touched. Without `huge`, or
 * where the kernel gives none, the pages are small. A child of fork does not have them: what is
 * pinned would be copied for it. Any number of threads at once. PLEAT_E_INVALID: it is no such
 * multiple; PLEAT_E_NO_MEMORY; PLEAT_E_UNSUPPORTED: children cannot be kept from it. */
PLEAT_NODISCARD pleat_result pleat__pages_get(uint64_t bytes, bool huge, void **memory);
void pleat__pages_give(void *memory, uint64_t bytes);

/* Bytes that the process may still touch: the least of what the kernel calls available and of what
 * its memory control groups leave to it, an eighth of each kept for others. (A process that touches
 * more than it may is killed, not refused.) */
uint64_t pleat__pages_room(void);

#endif
