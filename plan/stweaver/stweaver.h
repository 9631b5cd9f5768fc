/*
 * stweaver.h: the parts of the STWeaver synthesizer. stweaver.c says what it follows.
 */
#ifndef PLEAT_PLAN_STWEAVER_STWEAVER_H
#define PLEAT_PLAN_STWEAVER_STWEAVER_H

#include <plan/place/portfolio.h>

/* A decision of the paper: a span and its address relative to its group. */
typedef struct pleat__member {
    uint64_t at;
    uint32_t span;
} pleat__member;

/* A HomoPhase group with its local plan: members[first, first + count). */
typedef struct pleat__group {
    uint64_t size;
    uint64_t product; /* sum of size times lifetime, in 512 bytes times ranks */
    uint32_t first;
    uint32_t count;
    uint32_t begin;
    uint32_t end;
    uint16_t begin_phase;
    uint16_t end_phase;
} pleat__group;

typedef struct pleat__grouping {
    pleat__arena *arena;
    const pleat__strip *strip;
    pleat__group *groups;
    uint32_t group_count;
    pleat__member *members;
    uint32_t member_count; /* room ever used: fusion appends */
    size_t member_capacity;
    uint64_t work;
} pleat__grouping;

/* Time-memory product (the paper's equation 1): how much of its box a local plan uses. */
double pleat__group_product(const pleat__group *group);

/* Groups the spans that do not wrap, each packed without gaps, and fuses adjacent ones where that
 * uses their boxes better. */
PLEAT_NODISCARD pleat_result pleat__grouping_make(const pleat__strip *strip, pleat__grouping *out);
void pleat__grouping_free(pleat__grouping *grouping);

#endif
