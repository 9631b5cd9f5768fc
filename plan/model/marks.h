/*
 * marks.h: the two ways in which iterations are found in a trace that does not name them, and how
 * well what they find repeats. pleat__marks_find (iteration.h) chooses.
 */
#ifndef PLEAT_PLAN_MODEL_MARKS_H
#define PLEAT_PLAN_MODEL_MARKS_H

#include <plan/model/iteration.h>

/* Fill marks[count], from the requests' arena; none is no error. live[event_count + 1]: the bytes
 * live before each event, and at the end. */
PLEAT_NODISCARD pleat_result pleat__valleys_find(const pleat__requests *requests,
                                                 const uint64_t *live, uint32_t **marks,
                                                 uint32_t *count);
PLEAT_NODISCARD pleat_result pleat__period_find(const pleat__requests *requests,
                                                const uint64_t *live, uint32_t **marks,
                                                uint32_t *count);

/* *percent of the requests of the last iterations between the marks have one in the iteration
 * before that is as large or lives as long, counted in the longer of both. */
PLEAT_NODISCARD pleat_result pleat__marks_rate(const pleat__requests *requests,
                                               const uint32_t *marks, uint32_t count,
                                               uint32_t *percent);

#endif
